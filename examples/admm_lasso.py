"""The lasso by consensus ADMM on the partitions of a DataFrame, beside scikit-learn's on one machine.

    python examples/admm_lasso.py
    spark-submit --master 'local-cluster[2,1,1024]' examples/admm_lasso.py

    minimise  1/(2 M) ||y - X w - b||^2 + strength ||w||_1

Every part solves its own least squares, drawn towards a consensus; the driver soft-thresholds that. Once they are
dealt out, rows stay where they are: a few vectors of eleven numbers a part travel in a round. The rows are
scikit-learn's diabetes.
"""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Lasso
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from sparkdl import L1, ConjugateGradient, ConsensusADMM, TorchRegressor


def half_squares(output: Tensor, target: Tensor) -> Tensor:
    """Half the squared error of each row, as scikit-learn's lasso has it."""
    return (output.squeeze(-1) - target).square() / 2


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit a lasso by consensus ADMM.")
    parser.add_argument("--parts", type=int, default=4, help="parts that the rows are dealt out in, a task each")
    parser.add_argument("--strength", type=float, default=0.05, help="of the L1 penalty")
    given = parser.parse_args()

    x, y = load_diabetes(return_X_y=True)
    x, y = StandardScaler().fit_transform(x), (y - y.mean()) / y.std()
    with SparkSession.builder.appName("lasso").getOrCreate() as spark:
        rows = spark.createDataFrame(pa.table({"features": pa.array(list(x)), "label": pa.array(y)}))
        lasso = TorchRegressor(
            model=partial(nn.Linear, x.shape[1], 1),
            loss=half_squares,
            strategy=ConsensusADMM(prox=L1(given.strength), solver=ConjugateGradient(), abs_tol=1e-7, rel_tol=1e-6),
            numWorkers=given.parts,
            precision="fp64",
        )
        model = lasso.fit(rows)

    found = model.module().weight.detach().numpy()[0]
    reference = Lasso(alpha=given.strength, tol=1e-10).fit(x, y).coef_
    for row in model.history[:: max(1, len(model.history) // 8)]:
        print(f"round {row['round']:3d}: primal residual {row['primal']:.1e}, dual {row['dual']:.1e}")
    print(f"stopped by Boyd's rule after {len(model.history)} rounds")
    print("sparkdl      ", " ".join(f"{each:8.5f}" for each in found))
    print("scikit-learn ", " ".join(f"{each:8.5f}" for each in reference))
    print(f"largest difference {np.abs(found - reference).max():.1e}")


if __name__ == "__main__":
    main()
