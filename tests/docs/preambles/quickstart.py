"""docs/quickstart.md takes nothing for granted but a cluster on this machine, which is the tests' own."""

from __future__ import annotations


def page(execute, folder, spark):
    found = execute({})
    assert found["spark"] is spark
    assert found["model"].report["workers"] == [2]
    assert (folder / "models/digits").is_dir()
