"""The commands by name. Each imports its module when it runs, as importing Spark and torch takes seconds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pkgutil import resolve_name


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        job: the import path of its function.
        summary: the first line of the function's docstring.
        stops: whether SIGTERM asks the command to save and to stop.
        plain: whether the function parses its own arguments, without Spark and torch.
    """

    job: str
    summary: str
    stops: bool = False
    plain: bool = False


COMMANDS = {
    "train": Command("sparkdl.cli.train:train", "Train a model on rows that Spark reads, and save it.", stops=True),
    "parallel_sgd": Command(
        "sparkdl.cli.train:parallel_sgd",
        "Train a model by Parallel SGD: tasks train on their shards, and the driver averages the weights.",
        stops=True,
    ),
    "admm": Command(
        "sparkdl.cli.train:admm",
        "Train a model by consensus ADMM: each shard has its own weights, and rounds draw them together.",
        stops=True,
    ),
    "federated": Command(
        "sparkdl.cli.train:federated",
        "Train a model by federated averaging: clients train on their own rows, which stay in their shard.",
        stops=True,
    ),
    "lbfgs": Command(
        "sparkdl.cli.train:lbfgs",
        "Train a model by L-BFGS over all rows: each round evaluates the loss and its gradient once.",
        stops=True,
    ),
    "ensemble": Command(
        "sparkdl.cli.ensemble:ensemble", "Train an ensemble on rows that Spark reads, and save its model.", stops=True
    ),
    "predict": Command("sparkdl.cli.predict:predict", "Predict with a saved model."),
    "evaluate": Command("sparkdl.cli.evaluate:evaluate", "Evaluate a saved model on rows that have labels."),
    "etl_train": Command(
        "sparkdl.cli.pipeline.job:etl_train",
        "Train on a date's rows, publish the model if it is good enough, and score.",
        stops=True,
    ),
    "report": Command("sparkdl.cli.report:main", "Write the report page of one or several runs.", plain=True),
}
_NO_SPARK = 2  # BAD_CONFIGURATION of sparkdl.cli.app, which needs pyspark itself


def run(name: str, arguments: Sequence[str] | None = None, *, prog: str | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        name: one of ``COMMANDS``.
        arguments: default: ``sys.argv[1:]``.
        prog: the program's name in the help; default: the script's.
    """
    command = COMMANDS[name]
    try:
        job = resolve_name(command.job)
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        print(
            f"error: {name} needs pyspark, which is not installed: pip install 'sparkdl-torch[spark]'.", file=sys.stderr
        )
        return _NO_SPARK
    if command.plain:
        return int(job(arguments, prog=prog))
    from sparkdl.cli.app import main

    return main(job, arguments, prog=prog, stops=command.stops)
