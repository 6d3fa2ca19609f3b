"""Write the page of one or several runs: losses, metrics, throughput and seconds per phase.

    sparkdl report RUN_DIR [RUN_DIR ...] [--output report.html]

RUN_DIR is the ``runDir`` of an estimator, a path or URI; the run may be finished, failed or running. The page is one
self-contained file. The command starts no Spark session; ``spark-submit jobs/report.py`` runs it as well.

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
    """Write the page of some runs and return its path; default: ``report.html`` in the directory of the only run.

    Raises:
        InvalidInput: several runs are given without an output.
    """
    if output is None:
        if len(directories) > 1:
            raise InvalidInput(f"{len(directories)} runs are given; expected --output FILE, where to write their page.")
        output = files.join(directories[0], "report.html")
    write_page(read_runs(directories), output)
    return output


def main(arguments: Sequence[str] | None = None, *, prog: str | None = None) -> int:
    """Run the command and return its exit code; default arguments: ``sys.argv[1:]``."""
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
