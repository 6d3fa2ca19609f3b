"""Runs a command: arguments, exit code, and SIGTERM.

A configuration is a YAML file, ``--config FILE``, and any ``--key value`` after it, which overrides the file. For an
unknown key, in the file or on the command line, the command fails and names the nearest known key.

Exit codes: 0 done, 1 failed, 2 bad configuration, 130 interrupted, 143 stopped by SIGTERM, and the codes of `JobExit`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from sparkdl.cli.exit_codes import BAD_CONFIGURATION, DONE, FAILED, INTERRUPTED, JobExit
from sparkdl.cli.parser import Parser
from sparkdl.cluster.shutdown import TERMINATED, stop_requested, stoppable
from sparkdl.errors import InvalidInput, SparkdlError, Stopped
from sparkdl.spark.session.errors import SPARK_ERRORS, without_java_stack


def main(
    job: Callable[..., None], arguments: Sequence[str] | None = None, *, prog: str | None = None, stops: bool = False
) -> int:
    """Run a job with arguments from the command line and return the exit code.

    Errors that are neither sparkdl's nor Spark's are bugs: Python prints the traceback and exits with 1.

    Args:
        job: called with the objects of the configuration. Its argument ``configuration``, if it has one, gets the
            configuration as YAML.
        arguments: of the command line; default: ``sys.argv[1:]``.
        prog: the program's name in its help; default: the script's.
        stops: whether SIGTERM asks the job to save and to stop. If false, and after 28 s, SIGTERM ends the process.
    """
    description = (inspect.getdoc(job) or "").partition("\n")[0]
    parser = Parser(prog=prog, description=description, usage="%(prog)s [--config FILE] [--key value ...]")
    parser.add_argument("--config", action="config", help="a YAML file; keys after it override it")
    informed = {"configuration"} & set(inspect.signature(job).parameters)
    parser.add_job(job, skip=informed)
    arguments = parser.spelled(sys.argv[1:] if arguments is None else arguments)
    parser.parse_args(arguments)  # with the defaults, for --print_config
    config = parser.parse_args(arguments, defaults=False)
    text = {name: parser.dump(config, skip_validation=True) for name in informed}
    with stoppable() if stops else nullcontext():
        try:
            job(**parser.objects(config), **text)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return INTERRUPTED
        except Stopped as error:
            print("stopped:", error, file=sys.stderr)
            return TERMINATED
        except (SparkdlError, *SPARK_ERRORS) as error:
            print("error:", without_java_stack(error), file=sys.stderr)
            if isinstance(error, JobExit):
                return error.code
            if isinstance(error, InvalidInput):
                return BAD_CONFIGURATION
            # After a stop request, any error counts as the stop.
            return FAILED if stop_requested() is None else TERMINATED
    return DONE
