"""README.md: rows of 784 pixels to train and to test on."""

from __future__ import annotations

from tests.docs.digits import frames


def page(execute, folder, spark):
    found = execute(frames(spark, pixels=784))
    assert len(found["model"].history) == 2
    assert (folder / "models/digits").is_dir()
