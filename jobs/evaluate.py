"""Evaluate a saved model on rows that have labels."""

import sys

from sparkdl.cli.commands import run

if __name__ == "__main__":
    sys.exit(run("evaluate"))
