"""The commands by name. Each imports its module when it runs, as importing Spark and torch takes seconds."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pkgutil import resolve_name

from sparkdl.cli.exit_codes import BAD_CONFIGURATION


@dataclass(frozen=True)
class Command:
    """One command."""

    job: str  # the import path of its function
    summary: str  # the first line of the function's docstring
    stops: bool = True  # whether SIGTERM asks the command to save and to stop
    plain: bool = False  # whether the function parses its own arguments, without Spark and torch


COMMANDS = {
    "train": Command("sparkdl.cli.train:train", "Train a model on rows that Spark reads, and save it."),
    "parallel_sgd": Command("sparkdl.cli.train:parallel_sgd", "Train a model by Parallel SGD, which averages weights."),
    "admm": Command("sparkdl.cli.train:admm", "Train a model by consensus ADMM: each shard has its own weights."),
    "federated": Command("sparkdl.cli.train:federated", "Train a model by federated averaging over clients."),
    "lbfgs": Command("sparkdl.cli.train:lbfgs", "Train a model by L-BFGS on the loss of all rows."),
    "ensemble": Command("sparkdl.cli.train:ensemble", "Train an ensemble on rows that Spark reads, and save it."),
    "tune": Command("sparkdl.cli.train:tune", "Search hyperparameters on rows that Spark reads, and save the model."),
    "predict": Command("sparkdl.cli.scoring:predict", "Predict with a saved model.", stops=False),
    "evaluate": Command("sparkdl.cli.scoring:evaluate", "Evaluate a saved model on labelled rows.", stops=False),
    "etl_train": Command(
        "sparkdl.cli.pipeline.job:etl_train",
        "Train on a date's rows, publish the model if it is good enough, and score.",
    ),
    "doctor": Command(
        "sparkdl.cli.doctor.command:doctor",
        "Verify an installation on a cluster, and say what to do about it.",
        stops=False,
    ),
    "plan": Command("sparkdl.cli.plan:plan", "Predict seconds and bytes of a step for each strategy.", stops=False),
    "report": Command("sparkdl.cli.report:main", "Write the report page of one or several runs.", plain=True),
}


def run(name: str, arguments: Sequence[str | os.PathLike[str]] | None = None, *, prog: str | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        name: one of ``COMMANDS``.
        arguments: words or paths; default: ``sys.argv[1:]``.
        prog: the program's name in the help; default: the script's.
    """
    command, words = COMMANDS[name], None if arguments is None else [os.fspath(word) for word in arguments]
    try:
        job = resolve_name(command.job)
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        message = f"error: {name} needs pyspark, which is not installed: pip install 'sparkdl-torch[spark]'."
        print(message, file=sys.stderr)
        return BAD_CONFIGURATION
    if command.plain:
        return int(job(words, prog=prog))
    from sparkdl.cli.app import main

    return main(job, words, prog=prog, stops=command.stops)
