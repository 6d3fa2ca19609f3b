"""A session of Spark Connect without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class Remote(SimpleNamespace):
    """Has the module of Connect's session, by which ``session_of`` knows it."""


Remote.__module__ = "pyspark.sql.connect.session"


def remote(version: str = "4.0.0", **settings: str) -> Any:
    """A session with settings, in whose names two underscores are a dot; ``splits`` is the parallelism in plans."""
    names = {name.replace("__", "."): value for name, value in settings.items()}
    sql = [[f"*(1) Range (0, 8, step=1, splits={names.pop('splits', '8')})"]]
    return Remote(
        version=version,
        session_id=f"{version} {names} {sql}",
        conf=SimpleNamespace(get=names.get),
        sql=lambda query: SimpleNamespace(collect=lambda: sql),
        client=SimpleNamespace(get_retry_policies=list, set_retry_policies=list),
        **reports(),
    )


def reports() -> dict[str, Any]:
    """What a session has for tags and reports of progress; ``report`` calls the handlers as a query's thread does."""
    tags, handlers = set[str](), list[Any]()

    def report(running: int, *stages: tuple[int, int], done: bool = False) -> None:
        named = [SimpleNamespace(num_completed_tasks=ended, num_tasks=of) for ended, of in stages]
        for handler in handlers:
            handler(stages=named, inflight_tasks=running, operation_id="query", done=done)

    return {
        "registerProgressHandler": handlers.append,
        "removeProgressHandler": handlers.remove,
        "addTag": tags.add,
        "removeTag": tags.remove,
        "getTags": lambda: tags,
        "report": report,
    }
