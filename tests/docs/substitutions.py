"""What is changed in a block before it is run: addresses of clusters and folders, and numbers that only take time.

Each entry is a regular expression, what takes its place, and why. Nothing else of a block is touched.
"""

from __future__ import annotations

import re
from pathlib import Path

PYTHON = (
    (r"hdfs:///", "{folder}/", "there is no HDFS; a folder serves for the filesystem that all hosts see"),
    (r'"/data/', '"{folder}/data/', "the same, of a path that all hosts have"),
    (r"\bnumWorkers=\d+", "numWorkers=2", "two executors with a core each"),
    (r"\bnum_processes=\d+", "num_processes=2", "the same, of TorchDistributor"),
    (r"\bSparkCluster\(spark, \d+\)", "SparkCluster(spark, 2)", "the same, of a gang"),
    (r"\bminWorkers=\d+", "minWorkers=1", "at most numWorkers"),
    (r"\bepochs=\d+", "epochs=2", "the tests need no good model"),
    (r"\brounds=\d+", "rounds=2", "the same"),
    (r"\bnumTrials=\d+", "numTrials=3", "the same, of trials"),
    (r"\bLBFGS\(", "LBFGS(ftol=0.1, ", "the same, of rounds until the optimum"),
    (r"\bspark\.range\(20_000\)", "spark.range(4000)", "the same, of rows"),
    (r"\bnumModels=\d+", "numModels=2", "the same, of members"),
    (r"^spark\.stop\(\)$", "pass", "the tests go on with the session"),
)

SHELL = (
    (r"--master \S+ ", "", "conf/spark/local.conf has a cluster on this machine"),
    (r"--deploy-mode cluster ", "", "there is no cluster to hold the driver"),
    (r"conf/spark/(?!local)\w+\.conf", "conf/spark/local.conf", "the same; keys of the others are checked elsewhere"),
    (r"\bnet\.py", "examples/digits_net.py", "the user's own model"),
    (r"--files train\.yaml ", "", "the file is there without being shipped"),
    (r"--config (/opt/train/digits|train)\.yaml", "--config conf/train/digits.yaml", "the user's own configuration"),
    (r"local:///opt/jobs/", "jobs/", "there is no image"),
    (
        r"(?=--py-files \S+ jobs/(etl_train|evaluate|predict|tune)\.py)",
        "--master 'local[2]' ",
        "training and the doctor start executors; others start faster in the driver's JVM",
    ),
    (r"(?<=conf/tune/adult\.yaml)", " --tuner.numTrials 9 --tuner.estimator.epochs 3", "the tests need no good model"),
    (r" --estimator\.epochs 3$", "", "make demo's training, which runs once"),
)


def python(code: str, folder: Path) -> str:
    """A block of Python as it is run."""
    for pattern, text, _ in PYTHON:
        code = re.sub(pattern, text.format(folder=folder), code, flags=re.MULTILINE)
    return code


def shell(command: str) -> str:
    """A command, its lines joined, as it is run."""
    for pattern, text, _ in SHELL:
        command = re.sub(pattern, text, command)
    return command
