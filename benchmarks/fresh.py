"""A measurement in a fresh application: ``python -m benchmarks.fresh MODULE:FUNCTION`` prints its result as JSON.

The function gets a session whose executors have registered. JVMs have the options of conf/spark/local.conf for short
applications.
"""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from typing import Any

from benchmarks.session import ROOT, session

_SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def run_fresh(function: str, **settings: str) -> dict[str, Any]:
    """The result of ``"module:function"`` in a fresh application, with settings of Spark."""
    command = [sys.executable, "-m", "benchmarks.fresh", function, json.dumps(settings)]
    finished = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return result


def seconds_fresh(function: str, **settings: str) -> float:
    """The seconds in that result."""
    return float(run_fresh(function, **settings)["seconds"])


def main(function: str, settings: str = "{}") -> None:
    short = {f"spark.{side}.extraJavaOptions": _SHORT for side in ("driver", "executor")}
    with session("fresh", **short | json.loads(settings)) as spark:
        print(json.dumps(pkgutil.resolve_name(function)(spark)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
