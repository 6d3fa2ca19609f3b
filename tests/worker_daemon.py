"""pyspark's daemon with PyTorch loaded: the Python workers forked from it need not load it, three seconds each."""

from __future__ import annotations

import torch._dynamo  # noqa: F401 - what the first optimizer of a process loads; it starts no thread
from pyspark.daemon import manager

if __name__ == "__main__":
    manager()
