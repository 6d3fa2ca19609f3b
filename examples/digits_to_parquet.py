"""Write scikit-learn's digits, which come with the package, as Parquet: ``python examples/digits_to_parquet.py DIR``.

DIR/train gets 1437 rows and DIR/test the 360 held out, the same ones every time and each class in proportion:
``features`` is ``list<float32>``, the 64 pixels of an image from 0 to 1, and ``label`` its digit, ``int64``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

INK = 16  # the darkest pixel


def table(features: np.ndarray, labels: np.ndarray) -> pa.Table:
    pixels = pa.array(list((features / INK).astype(np.float32)), pa.list_(pa.float32()))
    return pa.table({"features": pixels, "label": pa.array(labels, pa.int64())})


def main() -> None:
    parser = argparse.ArgumentParser(description="Write scikit-learn's digits as Parquet, to DIR/train and DIR/test.")
    parser.add_argument("folder", type=Path, metavar="DIR")
    folder = parser.parse_args().folder

    features, labels = load_digits(return_X_y=True)
    train, test = train_test_split(np.arange(len(labels)), test_size=0.2, random_state=0, stratify=labels)
    for name, rows in (("train", train), ("test", test)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        pq.write_table(table(features[rows], labels[rows]), folder / name / "digits.parquet")
        print(f"{folder / name}: {len(rows)} rows")


if __name__ == "__main__":
    main()
