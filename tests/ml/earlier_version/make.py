"""Makes the files of an earlier version, with its checkout: ``python make.py <folder>``."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from sparkdl import EMA, TorchClassifier
from tests.sessions import IN_PROCESS, frame, session


def examples() -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
    return {"id": np.arange(64), "features": x, "label": (x.sum(axis=1) > 0).astype("int32")}


def classifier(run: str | None = None, epochs: int = 4) -> TorchClassifier:
    saved: dict[str, Any] = {} if run is None else {"runDir": run}
    return TorchClassifier(
        model=partial(nn.Linear, 3, 2),
        loss=nn.CrossEntropyLoss(label_smoothing=0.1),
        metrics={"accuracy": MulticlassAccuracy(2)},
        callbacks=[EMA(0.5)],
        idCol="id",
        numWorkers=2,
        batchSize=16,
        optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        epochs=epochs,
        checkpointInterval="1 epoch",
        **saved,
    )


def main(folder: Path) -> None:
    with session(folder / "spark", IN_PROCESS):
        rows = frame(examples())
        model = classifier().fit(rows)
        model.save(str(folder / "model"))
        classifier().save(str(folder / "estimator"))
        classifier(str(folder / "run"), epochs=2).fit(rows)
        weights = {name: value.tolist() for name, value in model.module().state_dict().items()}
        history = [{name: row[name] for name in ("epoch", "step", "loss")} for row in model.history]
        (folder / "expected.json").write_text(json.dumps({"weights": weights, "history": history}), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
