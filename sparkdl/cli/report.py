"""Write the page of a run, or of several beside one another: losses, metrics, throughput, where the time went.

    sparkdl report RUN_DIR [RUN_DIR ...] [--output report.html]

A run's directory is the ``runDir`` of an estimator, a path or URI; the run may be over, have failed, or still go on.
The page is one file that needs nothing but a browser. No Spark session is begun:
``spark-submit jobs/report.py`` runs this as well.

Exit codes: 0 done, 1 failed, 2 bad arguments, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.telemetry.html import read_runs, write_page


def report(directories: Sequence[str], output: str | None = None) -> str:
    """Write the page of some runs.

    Args:
        directories: of the runs, paths or URIs.
        output: the file, a path or URI; of one run ``report.html`` in its directory if not given.

    Returns:
        Where it was written.
    """
    if output is None:
        if len(directories) > 1:
            raise InvalidInput(f"{len(directories)} runs are given; expected --output FILE, where to write their page.")
        output = files.join(directories[0], "report.html")
    write_page(read_runs(directories), output)
    return output


def main(arguments: Sequence[str] | None = None, *, prog: str | None = None) -> int:
    """Run the command with arguments from the command line, ``sys.argv`` by default, and return the exit code."""
    parser = argparse.ArgumentParser(prog=prog, description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directories", nargs="+", metavar="RUN_DIR", help="the runDir of a fit, a path or URI")
    parser.add_argument(
        "--output", metavar="FILE", help="a path or URI; report.html in the RUN_DIR by default, where there is one"
    )
    given = parser.parse_args(arguments)
    try:
        print(f"wrote {report(given.directories, given.output)}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except InvalidInput as error:
        print("error:", error, file=sys.stderr)
        return 2
    except OSError as error:
        print("error:", error, file=sys.stderr)
        return 1
    return 0
