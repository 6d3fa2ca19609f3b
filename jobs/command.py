"""What a job is on the command line: its configuration, the rows it reads, its exit code.

A configuration is a YAML file, ``--config FILE``, and any ``--key value`` after it that overrides the file. An unknown
key, in the file or on the command line, is refused and the nearest known one named.

Exit codes: 0 done, 1 failed, 2 bad configuration, 130 interrupted.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from jsonargparse import ArgumentParser
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from sparkdl.errors import InvalidInput, SparkdlError

DONE, FAILED, BAD_CONFIGURATION, INTERRUPTED = 0, 1, 2, 130

# What jsonargparse says of a key that it does not know: on the command line, in a section of the file, elsewhere in it.
_UNKNOWN = re.compile(r"unrecognized arguments: --([^\s=]+)|option '([^']+)'$|Option '([^']+)' is not accepted", re.M)
_NAMED = re.compile(r"unknown key '.*")
_SPEC = ("class_path", "init_args")


@dataclass(frozen=True)
class Data:
    """Rows that Spark reads.

    Args:
        path: a file or folder, on any filesystem that Spark reads.
        format: parquet, orc, csv, json or another that Spark knows.
        options: the reader's options, for example {header: true, inferSchema: true} for csv.
    """

    path: str
    format: str = "parquet"
    options: dict[str, Any] = field(default_factory=dict)

    def read(self, spark: SparkSession) -> DataFrame:
        """The rows, not read before they are needed."""
        return spark.read.format(self.format).options(**self.options).load(self.path)


class Parser(ArgumentParser):
    """A parser of ``--config FILE`` and of keys on the command line, which names the nearest key to one it lacks.

    jsonargparse makes a parser of the same class for each ``init_args``, so all of this holds at every level.
    """

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """End with exit code 2, saying what is wrong."""
        named, unknown = _NAMED.search(message), _UNKNOWN.search(message)
        if named and self.exit_on_error:
            place = ".".join(re.findall(r'Parser key "([^"]+)"', message[: named.start()]))
            message = f"{place}: {named[0]}" if place else named[0]
        elif unknown and not named:
            message = self._name_nearest(next(key for key in unknown.groups() if key))
        super().error(message, ex)

    def _name_nearest(self, key: str) -> str:
        known = [action.dest for action in self._actions if not isinstance(action, argparse._HelpAction)]
        known = [name for name in known if name.replace(".", "").isidentifier() and not name.endswith(".help")]
        return f"unknown key {key!r}; {_nearest(key, [*known, *(() if self.exit_on_error else _SPEC)])}"


def _nearest(key: str, known: Iterable[str]) -> str:
    """Of the keys that a parser knows the one that was probably meant, else all of them."""
    heads = {name.partition(".")[0] for name in known}
    head, dot, rest = key.partition(".")
    close = difflib.get_close_matches(key, known, n=1)
    if not close and head not in heads:
        close = [near + dot + rest for near in difflib.get_close_matches(head, heads, n=1)]
    return f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(sorted(known))}."


def exit_code(job: Callable[[], None]) -> int:
    """Run a job, print what went wrong, if anything did, and return the exit code.

    What is neither sparkdl's nor Spark's is a bug, and Python prints its traceback and exits with 1.
    """
    try:
        job()
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except InvalidInput as error:
        return _say(error, BAD_CONFIGURATION)
    except (SparkdlError, PySparkException) as error:
        return _say(error, FAILED)
    except Py4JJavaError as error:
        return _say(error.java_exception.toString(), FAILED)
    return DONE


def _say(what: object, code: int) -> int:
    text = str(what).partition("\n\nJVM stacktrace:")[0]
    print(text if code == INTERRUPTED else f"error: {text}", file=sys.stderr)
    return code
