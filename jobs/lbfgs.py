"""Train a model by L-BFGS over all rows.

spark-submit jobs/lbfgs.py --config conf/rounds/lbfgs.yaml
"""

import sys

from sparkdl.cli.commands import run

if __name__ == "__main__":
    sys.exit(run("lbfgs"))
