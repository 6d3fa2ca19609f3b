"""Write the report page of one or several runs: losses, metrics, throughput and seconds per phase.

    sparkdl report RUN_DIR [RUN_DIR ...] [--output report.html]

RUN_DIR is the ``runDir`` of an estimator, a path or URI; the run may be finished, failed or running. The page is one
self-contained file. The command starts no Spark session; ``spark-submit jobs/report.py`` runs it as well.

Exit codes: 0 done, 1 failed, 2 bad arguments, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sparkdl.cli.exit_codes import BAD_CONFIGURATION, DONE, FAILED, INTERRUPTED
from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.report import read_runs, write_page


def main(arguments: Sequence[str] | None = None, *, prog: str | None = None) -> int:
    """Run the command and return its exit code; default arguments: ``sys.argv[1:]``."""
    parser = argparse.ArgumentParser(prog=prog, description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directories", nargs="+", metavar="RUN_DIR", help="the runDir of a fit, a path or URI")
    parser.add_argument("--output", metavar="FILE", help="a path or URI; default: report.html in the only RUN_DIR")
    options = parser.parse_args(arguments)
    runs, output = options.directories, options.output
    try:
        if output is None and len(runs) > 1:
            raise InvalidInput(f"{len(runs)} runs are given without an output; expected --output FILE.")
        output = output or files.join(runs[0], "report.html")
        read = read_runs(runs)
        for run in filter(lambda run: run.odd, read):
            what = "lines of its event files hold no readable event and are left out"
            print(f"{run.name}: {what}: {run.odd}", file=sys.stderr)
        write_page(read, output)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except (InvalidInput, OSError) as error:
        print("error:", error, file=sys.stderr)
        return BAD_CONFIGURATION if isinstance(error, InvalidInput) else FAILED
    print(f"wrote {output}")
    return DONE
