"""Search hyperparameters on rows that Spark reads, and save the best model."""

import sys

from sparkdl.cli.commands import run

if __name__ == "__main__":
    sys.exit(run("tune"))
