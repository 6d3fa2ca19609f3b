"""The state of the global random number generators."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from sparkdl.io.serialization import pack_state


def random_state(device: torch.device | None = None) -> dict[str, Any]:
    """State of the global generators of Python, numpy and torch, on the CPU and on one GPU.

    ``device`` is the GPU, by default the current one if CUDA is initialised. Any GPU can load the state.
    """
    version, words, gauss = random.getstate()
    state = {
        "python": {"version": version, "words": np.array(words, np.uint32), "gauss": gauss},
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
    }
    gpu = _gpu(device)
    return state if gpu is None else state | {"cuda": torch.cuda.get_rng_state(gpu)}


def set_random_state(state: dict[str, Any], device: torch.device | None = None) -> None:
    """Restore a state from ``random_state``. Without a GPU state in it, the GPU's generator stays unchanged."""
    python = state["python"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    gpu = _gpu(device)
    if gpu is not None and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], gpu)


@contextmanager
def kept_random_state(device: torch.device | None = None) -> Iterator[Callable[[], bool]]:
    """Restore the state of ``random_state`` at the end, also after an error; yields whether it has changed so far."""
    state = random_state(device)
    try:
        yield lambda: pack_state(random_state(device)) != pack_state(state)
    finally:
        set_random_state(state, device)


@contextmanager
def forked(device: torch.device | None = None) -> Iterator[None]:
    """Restore the states of torch's CPU generator, and of a GPU's, after the block."""
    with torch.random.fork_rng(devices=[device] if device is not None and device.type == "cuda" else []):
        yield


def _gpu(device: torch.device | None) -> torch.device | None:
    if device is None:
        ready = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return torch.device("cuda", torch.cuda.current_device()) if ready else None
    return device if device.type == "cuda" else None
