"""The import law of the house: which room stands on which, and which packages stay in which files."""

from __future__ import annotations

import re

# A room may import itself and the rooms it stands on, theirs included. The docs quote this table.
STANDS_ON = {
    "sparkdl.errors": "",
    "sparkdl.io": "sparkdl.errors",
    "sparkdl.net": "sparkdl.errors",
    "sparkdl.data": "sparkdl.io",
    "sparkdl.telemetry": "sparkdl.data sparkdl.net",
    "sparkdl.cluster": "sparkdl.telemetry",
    "sparkdl.spark": "sparkdl.cluster",
    "sparkdl.checkpoint": "sparkdl.cluster",
    "sparkdl.training": "sparkdl.checkpoint",
    "sparkdl.rounds": "sparkdl.training",
    "sparkdl.serving": "sparkdl.training",
    "sparkdl.report": "sparkdl.telemetry",
    "sparkdl.ml": "sparkdl.rounds sparkdl.serving sparkdl.spark sparkdl.report",
    "sparkdl.ensembles": "sparkdl.ml",
    "sparkdl.cli": "sparkdl.ensembles",
    "jobs": "sparkdl.cli",
    "examples": "sparkdl.cli",
    "benchmarks": "sparkdl.cli",
}

# Packages of others, and the only rooms or files that may import them.
CONFINED = {
    "pyspark": "sparkdl.spark sparkdl.ml sparkdl.ensembles sparkdl.cli",
    "py4j": "sparkdl.spark.session.classic sparkdl.spark.session.classic_slots sparkdl.spark.session.errors",
    "pyarrow": "sparkdl.io.files sparkdl.data sparkdl.serving sparkdl.spark sparkdl.ml",
    "optuna": "sparkdl.ml.tuning",
    "torch.distributed": """
        sparkdl.cluster.group sparkdl.training.strategies sparkdl.training.layouts
    """,
}

# What a session of Spark Connect lacks, and the only files that touch it: the session and the classic task runner.
CLASSIC = frozenset({"SparkContext", "sparkContext", "RDD", "rdd", "Broadcast"})
CLASSIC |= {f"{verb}Job{what}" for verb in ("add", "set", "remove", "cancel") for what in ("Tag", "Group")}
CLASSIC |= {"cancelJobsWithTag", "cancelAllJobs"}
TOUCH_CLASSIC = "sparkdl.spark.session sparkdl.spark.classic_tasks"

# Lines of each room. A feature that exceeds its room's number first makes room in it, or has a record in docs/adr/.
BUDGETS = {
    "sparkdl.errors": 141,
    "sparkdl.io": 1765,
    "sparkdl.net": 506,
    "sparkdl.data": 2363,
    "sparkdl.telemetry": 2001,
    "sparkdl.report": 1125,
    "sparkdl.cluster": 3493,
    "sparkdl.checkpoint": 1750,
    "sparkdl.training": 11704,
    "sparkdl.rounds": 2249,
    "sparkdl.serving": 3230,
    "sparkdl.spark": 4012,
    "sparkdl.ml": 8112,
    "sparkdl.ensembles": 4119,
    "sparkdl.cli": 3199,
}

# Names of classes that say nothing of what they hold, and the field has none like them.
RIDDLES = frozenset(
    re.findall(
        r"\w+",
        """
    Place Watch Board Curves Mirror Requests Rows Local Search Point Problem Expansion Results Start Unit Cell Name
    Choice Verified Limits Clean Split Score Refused Connected Check LevelOne OfSubspace Models EachTask Finished
    OnStream Clients Saved Trained Fitted
    """,
    )
)

# Names of parameters and locals that say nothing of their value; methods such as __add__ have Python's names.
RIDDLE_LOCALS = frozenset(
    ["found", "told", "given", "made", "kept", "wanted", "whole", "own", "each", "other", "here", "rest", "apart"]
)


def below(room: str) -> frozenset[str]:
    """The room and every room it stands on, directly or not."""
    return frozenset({room}).union(*(below(lower) for lower in STANDS_ON[room].split()))


def room_of(module: str) -> str | None:
    """The room of a dotted module name."""
    return next((room for room in STANDS_ON if module == room or module.startswith(room + ".")), None)
