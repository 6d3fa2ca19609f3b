"""Commands on the shared session."""

from __future__ import annotations

import pytest

from sparkdl.cli.commands import run
from tests.sessions import ROOT


@pytest.fixture
def job(spark, nets, monkeypatch, capsys):
    """Run a command in this process, on a session that outlives it: the exit code, and all that was printed."""
    monkeypatch.setattr(type(spark), "stop", lambda *_: None)
    monkeypatch.chdir(ROOT)
    for path in (ROOT / "examples/digits_net.py", nets / "some_nets.py"):
        spark.sparkContext.addPyFile(str(path))

    def job(name: str, *arguments: object) -> tuple[int, str]:
        code = run(name, [str(word) for word in arguments])
        return code, "".join(capsys.readouterr())

    return job
