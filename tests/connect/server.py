"""A Spark application that serves Connect, and runs functions in its classic session:
``python -m tests.connect.server FOLDER MASTER``.

It prints its port, and then for each line of its input, a list with a module, a function and its arguments, the result.
Lines are JSON.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

from tests.sessions import session

PLUGIN = "org.apache.spark.sql.connect.SparkConnectPlugin"


def main(folder: str, master: str) -> None:
    with session(folder, master, plugins=PLUGIN, connect__grpc__binding__port="0") as spark:
        service: Any = spark._jvm.org.apache.spark.sql.connect.service
        print(getattr(getattr(service, "SparkConnectService$"), "MODULE$").localPort(), flush=True)
        for line in sys.stdin:
            module, name, *arguments = json.loads(line)
            print(json.dumps(getattr(import_module(module), name)(spark, *arguments)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
