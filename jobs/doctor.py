"""Verify an installation on a cluster.

spark-submit --properties-file conf/spark/standalone.conf jobs/doctor.py
"""

import sys

from sparkdl.cli.commands import run

if __name__ == "__main__":
    sys.exit(run("doctor"))
