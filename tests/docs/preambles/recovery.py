"""docs/recovery.md: rows and a model."""

from __future__ import annotations

from sparkdl.cluster.shutdown import stop_requested
from tests.docs.digits import Net, frames


def page(execute, folder, spark):
    found = execute({"Net": Net, "spark": spark, **frames(spark)})
    assert (folder / "runs/digits/checkpoints").is_dir()
    # The second fit is of the same run, which was over: it took no step, and gave the model.
    assert found["model"].report["restarts"] == 0
    assert len(found["model"].history) == 2
    assert found["clf"].getMinWorkers() == 1
    assert stop_requested() is None
