"""What an estimator's Params are where nothing was said."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from sparkdl.training.strategies.allreduce import AllReduce

DEFAULTS: dict[str, Any] = {
    "optimizer": partial(torch.optim.Adam, lr=1e-3),
    "scheduler": None,
    "metrics": {},
    "inputCols": ["features"],
    "featuresCol": "features",
    "columns": [],
    "collate": None,
    "thresholds": None,
    "labelCol": "label",
    "weightCol": None,
    "validationCol": None,
    "idCol": None,
    "predictionCol": "prediction",
    "rawPredictionCol": "rawPrediction",
    "probabilityCol": "probability",
    "numWorkers": 1,
    "batchSize": 256,
    "epochs": 1,
    "seed": 0,
    "strategy": AllReduce(),
    "device": "cpu",
    "precision": "fp32",
    "clipNorm": None,
    "accumulate": 1,
    "numClasses": None,
    "patience": None,
    "augment": None,
    "hooks": [],
    "runDir": None,
    "slotWait": 120.0,
    "allowPlaintext": False,
    "checkpointEvery": "auto",
    "maxRestarts": 3,
    "minWorkers": None,
    "elasticWait": 300.0,
    "maxRounds": None,
    "timeBudget": None,
    "events": True,
    "logLevel": "warning",
}
