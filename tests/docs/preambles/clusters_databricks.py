"""docs/clusters/databricks.md: a session."""

from __future__ import annotations


def page(execute, folder, spark):
    assert execute({"spark": spark})["members"] >= 1
