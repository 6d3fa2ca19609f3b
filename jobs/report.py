"""Write the report page of one or several runs."""

import sys

from sparkdl.cli.commands import run

if __name__ == "__main__":
    sys.exit(run("report"))
