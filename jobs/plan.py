"""Predict seconds and bytes of a step for each strategy."""

import sys

from sparkdl.cli.commands import run

if __name__ == "__main__":
    sys.exit(run("plan"))
