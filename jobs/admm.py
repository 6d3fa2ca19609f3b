"""Train a model by consensus ADMM.

spark-submit jobs/admm.py --config conf/rounds/admm.yaml
"""

import sys

from sparkdl.cli.commands import run

if __name__ == "__main__":
    sys.exit(run("admm"))
