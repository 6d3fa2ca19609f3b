"""Train a model by federated averaging.

spark-submit jobs/federated.py --config conf/rounds/federated.yaml
"""

import sys

from sparkdl.cli.commands import run

if __name__ == "__main__":
    sys.exit(run("federated"))
