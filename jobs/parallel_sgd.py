"""Train a model by Parallel SGD.

spark-submit jobs/parallel_sgd.py --config conf/rounds/parallel_sgd.yaml
"""

import sys

from sparkdl.cli.commands import run

if __name__ == "__main__":
    sys.exit(run("parallel_sgd"))
