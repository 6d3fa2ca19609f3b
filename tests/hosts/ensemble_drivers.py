"""A bagging that a driver on the first of several hosts trains, with faults; arguments and results travel as JSON.

The phase of the faults is ``"batch"``: at the start of a member's batch of training, from 1; the rank is the member.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparkdl import TorchClassifier
from sparkdl.cluster.shutdown import TERMINATED, stoppable
from sparkdl.data.sampler import generator
from sparkdl.ensembles.bagging import Bagging
from sparkdl.ensembles.resampling.bootstrap import member_seed
from sparkdl.errors import Stopped
from tests.chaos.runs import Momentum
from tests.faults import Fault
from tests.faults.fault import executor_of
from tests.sessions import frame

MEMBERS = 8
_ROWS = 96
_INDICES = {generator(member_seed(0, index), 0).initial_seed(): index for index in range(MEMBERS)}


class Marked(nn.Module):
    """Two scores for three numbers; logs which member begins in which executor, and lets faults happen to it.

    Its weights are so many that Spark leaves them with the executors until the driver fetches them.

    Args:
        folder: of ``calls`` and ``faults``. Faults are no argument: they do not change which ensemble it is.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 1024), nn.Tanh(), nn.Dropout(0.2), nn.Linear(1024, 2))
        self.folder, self.batches = folder, 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.batches += 1
            index = _INDICES[torch.initial_seed()]
            if self.batches == 1:
                with Path(self.folder, "calls").open("a", encoding="utf-8") as file:
                    file.write(f"{index} {executor_of(os.getpid())}\n")
            for fields in json.loads(Path(self.folder, "faults").read_text()):
                if (fields["rank"], fields["step"]) == (index, self.batches):
                    Fault(**fields).strike()
        scores: Tensor = self.inner(x)
        return scores


def begun(folder: Path, member: int) -> list[int]:
    """The executors in which a member began, in order."""
    lines = [line.split() for line in (folder / "calls").read_text().splitlines()]
    return [int(executor) for index, executor in lines if int(index) == member]


def finished(run: Path) -> set[int]:
    """The members that are kept."""
    return {int(path.name[-5:]) for path in (run / "members").glob("member-?????")}


def bagged(folder: str, run: str | None, faults: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Train, or resume, in a job that handles SIGTERM; ``folder`` is for marks and calls."""
    Path(folder).mkdir(exist_ok=True)
    Path(folder, "faults").write_text(json.dumps(faults))
    base = TorchClassifier(
        model=partial(Marked, folder), optimizer=partial(Momentum, lr=0.1), inputCols=["x"], batchSize=16, epochs=2
    )
    draw = np.random.default_rng(11)
    x = draw.normal(size=(_ROWS, 3))
    label = (x @ [1.0, -1.0, 0.5] + 0.4 * draw.normal(size=_ROWS) > 0).astype(np.float64)
    data = frame({"id": np.arange(_ROWS), "x": x, "label": label}).repartition(3, "id")
    with stoppable():
        try:
            model = Bagging(base=base, numModels=MEMBERS, idCol="id", runDir=run).fit(data)
        except Stopped as error:
            print("stopped:", error, flush=True)
            sys.exit(TERMINATED)
    states = [member.module().state_dict().values() for member in model.models]
    weights = [b"".join(tensor.numpy().tobytes() for tensor in tensors) for tensors in states]
    return {
        "weights": [hashlib.sha256(each).hexdigest() for each in weights],
        "trained": model.report["trained"],
        "restored": model.report["restored"],
    }
