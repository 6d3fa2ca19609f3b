"""Evaluate a saved model on labelled rows."""

import sys

from sparkdl.cli.commands import run

if __name__ == "__main__":
    sys.exit(run("evaluate"))
