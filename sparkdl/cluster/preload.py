"""Loads PyTorch in a process that forks workers.

Such a process never computes, since a child of a process with OpenMP threads hangs in its first matrix product. It
never imports pyarrow or pandas, which start threads, and never calls ``torch.cuda``.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal


def preload() -> None:
    """Import torch, all that its first optimizer imports, and numpy, and exempt them from garbage collection.

    Raises:
        ImportError: torch or numpy is not installed.
        RuntimeError: this process has several threads, whose locks would stay locked in its children.
    """
    gc.disable()  # collections take a quarter of the imports' time
    try:
        import numpy as np
        import torch._dynamo  # noqa: F401 - the first optimizer of a process imports it
    finally:
        gc.enable()
    os.register_at_fork(after_in_child=np.random.seed)  # or all workers would draw the same numbers
    if (pid := os.fork()) == 0:  # OpenBLAS ends its threads before a fork, and restarts them on demand
        os._exit(0)
    with contextlib.suppress(ChildProcessError, ProcessLookupError):  # where SIGCHLD is ignored
        os.kill(pid, signal.SIGKILL)  # a child that is stopped would never exit
        os.waitpid(pid, 0)
    gc.collect()  # freeze would keep existing garbage for ever
    gc.freeze()
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise RuntimeError(f"process {os.getpid()} has {threads} threads; expected 1 before it forks workers.")
