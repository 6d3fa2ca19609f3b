"""Run the scheduled pipeline for a date."""

import sys

from sparkdl.cli.commands import run

if __name__ == "__main__":
    sys.exit(run("etl_train"))
