"""Real data sets as arrays: from scikit-learn, and from the folder that SPARKDL_DATA names."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_diabetes, load_svmlight_file
from sklearn.preprocessing import StandardScaler

ROOT = Path(__file__).resolve().parents[2]
_SKEWED = ["fnlwgt", "capital-gain", "capital-loss"]


def data_folder() -> Path:
    """Where data sets are, if they are anywhere."""
    return Path(os.environ.get("SPARKDL_DATA") or ROOT.parent / "shared" / "data")


def real(name: str) -> Path:
    """The path of a data set's file; without it the test is skipped, or fails where SPARKDL_REQUIRE_DATA is set."""
    folder = data_folder()
    if not (folder / name).is_file():
        say = pytest.fail if os.environ.get("SPARKDL_REQUIRE_DATA") else pytest.skip
        say(f"{folder / name} is not there; set SPARKDL_DATA to the folder that has it")
    return folder / name


@functools.cache
def diabetes() -> tuple[np.ndarray, np.ndarray]:
    """How diabetes went on in 442 patients: ten measurements and the target, of mean 0 and variance 1."""
    x, y = load_diabetes(return_X_y=True, scaled=False)
    return StandardScaler().fit_transform(x), (y - y.mean()) / y.std()


@functools.cache
def a9a() -> tuple[np.ndarray, np.ndarray]:
    """Adult in 123 binary features: 32561 rows, and targets 0 and 1."""
    x, y = load_svmlight_file(str(real("a9a")), n_features=123)
    return x.toarray(), (y > 0).astype(np.float64)


@functools.cache
def adult() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """``train`` and ``test`` rows of Adult: categories one-hot, numbers scaled, float32; targets 0 and 1."""
    frames = {name: pd.read_csv(real(f"adult.{name}"), skipinitialspace=True) for name in ("data", "test")}
    both = pd.concat(frames.values(), keys=frames)
    labels = both.pop("Y").str.rstrip(".").eq(">50K").astype("float32")
    both[_SKEWED] = np.log1p(both[_SKEWED])
    numbers = both.select_dtypes("number")
    train = numbers.loc["data"]
    scaled = (numbers - train.mean()) / train.std()
    x = pd.concat([scaled, pd.get_dummies(both.drop(columns=numbers.columns))], axis=1).astype("float32")
    return {
        kind: (x.loc[name].to_numpy(), labels.loc[name].to_numpy())
        for kind, name in (("train", "data"), ("test", "test"))
    }
