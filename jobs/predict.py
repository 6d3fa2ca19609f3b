"""Predict with a saved model."""

import sys

from sparkdl.cli.commands import run

if __name__ == "__main__":
    sys.exit(run("predict"))
