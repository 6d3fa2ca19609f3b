"""Train an ensemble on rows that Spark reads, and save it."""

import sys

from sparkdl.cli.commands import run

if __name__ == "__main__":
    sys.exit(run("ensemble"))
