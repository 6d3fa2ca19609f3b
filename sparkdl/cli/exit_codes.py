"""Exit codes of commands, and the outcomes that have one of their own."""

from __future__ import annotations

from sparkdl.errors import SparkdlError

DONE, FAILED, BAD_CONFIGURATION, INTERRUPTED = 0, 1, 2, 130


class JobExit(SparkdlError):
    """A command ends with an exit code of its own."""

    code = FAILED


class ModelRejected(JobExit):
    """The gate rejected the new model, and the version in use stays."""

    code = 3


class BadInput(JobExit):
    """The rows lack columns, values or types that the command needs."""

    code = 4


class Superseded(JobExit):
    """A later run of the same date took over."""

    code = 5
