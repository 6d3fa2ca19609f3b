"""Published versions: CURRENT always names a complete one, however many processes publish, prune and read."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.ml.persistence.registry import Versions


def save(versions: Versions, *names: str) -> None:
    """Complete versions, whose models are one file each."""
    for name in names:
        files.write(f"{versions.model(name)}/weights", name.encode())
        versions.complete(name, {"of": name})


def folders(versions: Versions) -> list[str]:
    return sorted(path.name for path in Path(versions.root, "versions").iterdir())


@pytest.fixture
def versions(tmp_path) -> Versions:
    return Versions(str(tmp_path / "models"))


def test_current_version_is_last_published(versions):
    assert (versions.current(), versions.names()) == (None, [])
    save(versions, "two", "one")
    assert (versions.current(), versions.names()) == (None, ["two", "one"])
    for name in ("two", "one"):
        versions.publish(name)
        assert versions.current() == name
    assert Path(versions.root, "CURRENT").read_text() == "one\n"
    assert versions.about("one")["of"] == "one"
    assert versions.about("two")["saved"] < versions.about("one")["saved"]
    save(versions, "undecided", "rejected")
    versions.refuse("rejected")
    Path(versions.root, "CURRENT").unlink()  # as between the two steps in which HDFS replaces it
    assert versions.current() == "one"


def test_incomplete_version_and_broken_pointer_raise(versions):
    files.write(f"{versions.model('half')}/weights", b"")
    with pytest.raises(InvalidInput, match=r"'half' in .*complete\(\)"):
        versions.publish("half")
    assert versions.names() == []
    assert not versions.is_complete("half")
    assert not versions.is_complete("")
    save(versions, "one")
    for name in (b"two", b"", b"\xff\xfe", b"a\0b", b"[]"):
        Path(versions.root, "CURRENT").write_bytes(name)
        with pytest.raises(InvalidInput, match=r"CURRENT names the version .*expected one of one"):
            versions.current()


def test_pointer_that_moves_during_read_is_read_again(versions, monkeypatch):
    save(versions, "one", "two")
    pointed = iter(["one", "two"])
    files.delete(f"{versions.root}/versions/one")  # pruned after the read of its pointer
    monkeypatch.setattr(Versions, "_pointed", lambda _: next(pointed))
    assert versions.current() == "two"


def test_prune_keeps_newest_and_current(versions):
    save(versions, *(f"v{number}" for number in range(6)))
    for number in (0, 2, 3, 4, 5, 1):
        versions.publish(f"v{number}")
    Path(versions.root, "CURRENT").write_text("v2")  # by a person
    assert versions.prune(2) == ["v0", "v3", "v4"]
    assert folders(versions) == ["v1", "v2", "v5"]
    assert versions.prune(3) == []
    with pytest.raises(InvalidInput, match="keep is 0; expected"):
        versions.prune(0)


def test_prune_counts_rejected_versions_apart_and_keeps_undecided(versions):
    save(versions, *(f"v{number}" for number in range(8)))
    for number in range(7):
        (versions.publish if number < 2 else versions.refuse)(f"v{number}")
    assert versions.prune(2) == ["v2", "v3", "v4"]
    assert versions.names() == ["v0", "v1", "v5", "v6", "v7"]
    versions.publish("v5")  # by a person, although it was rejected
    assert versions.prune(2) == ["v0"]


def test_discard_deletes_the_incomplete_versions_that_the_caller_owns(versions):
    for name in ("half", "half of another", "other"):
        files.write(f"{versions.model(name)}/weights", b"")
    save(versions, "whole")
    versions.discard({"half", "whole", "never there"}.__contains__)
    assert folders(versions) == ["half of another", "other", "whole"]


def test_readers_find_complete_model_during_publish_and_prune(versions):
    save(versions, "first")
    versions.publish("first")
    over = threading.Event()

    def read() -> int:
        complete = 0
        while not over.is_set() or not complete:
            name = versions.current()
            complete += Path(versions.model(str(name)), "weights").read_text() == name
        return complete

    def publish(writer: int) -> None:
        for number in range(20):
            save(versions, f"{writer}-{number}")
            versions.publish(f"{writer}-{number}")
            versions.prune(45)

    with ThreadPoolExecutor(5) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        for writer in [pool.submit(publish, number) for number in range(3)]:
            writer.result()
        over.set()
        assert all(reader.result() for reader in readers)
    assert str(versions.current()).endswith("-19")
