"""How a job ends that does what it was asked to, and has something to tell by its exit code."""

from __future__ import annotations

from sparkdl.errors import SparkdlError


class Ended(SparkdlError):
    """An end with an exit code of its own."""

    code = 1


class Refused(Ended):
    """The gate has refused the new model, and the one in use stays."""

    code = 3


class BadInput(Ended):
    """The rows are not what the job needs."""

    code = 4


class Superseded(Ended):
    """A later run of the same date has taken over."""

    code = 5
