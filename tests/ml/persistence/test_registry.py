"""Published versions: CURRENT always names a whole one, however many publish, prune and read at the time."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.ml.persistence.registry import Versions


def save(versions: Versions, name: str) -> None:
    """A version, whose model is a file."""
    files.write(f"{versions.model(name)}/weights", name.encode())
    versions.complete(name, {"of": name})


@pytest.fixture
def versions(tmp_path) -> Versions:
    return Versions(str(tmp_path / "models"))


def test_nothing_is_in_use_before_the_first_is_published(versions):
    assert versions.current() is None
    assert versions.names() == []
    save(versions, "one")
    assert versions.current() is None
    assert versions.names() == ["one"]


def test_what_is_published_is_in_use(versions):
    for name in ("one", "two"):
        save(versions, name)
        versions.publish(name)
        assert versions.current() == name
    assert Path(versions.root, "CURRENT").read_text() == "two\n"
    assert versions.about("one")["of"] == "one"
    assert versions.about("one")["saved"] <= versions.about("two")["saved"]


def test_a_version_that_is_not_whole_is_not_published(versions):
    files.write(f"{versions.model('half')}/weights", b"")
    assert not versions.is_complete("half")
    with pytest.raises(InvalidInput, match=r"'half' in .* is not whole; complete\(\) it before"):
        versions.publish("half")
    assert versions.names() == []
    assert not versions.is_complete("")


def test_a_pointer_that_somebody_has_broken_is_told_of(versions):
    save(versions, "one")
    Path(versions.root, "CURRENT").write_text("two")
    with pytest.raises(InvalidInput, match="names the version 'two', which is not whole; expected one of one"):
        versions.current()


def test_a_pointer_that_moves_while_it_is_read_is_read_again(versions, monkeypatch):
    for name in ("one", "two"):
        save(versions, name)
        versions.publish(name)
    pointed = iter(["one", "two"])
    files.delete(f"{versions.root}/versions/one")  # pruned after the pointer to it was read
    monkeypatch.setattr(Versions, "_pointed", lambda _: next(pointed))
    assert versions.current() == "two"


def test_while_there_is_no_pointer_the_last_that_was_published_is_in_use(versions):
    for name in ("one", "two", "three", "four"):
        save(versions, name)
    for name in ("two", "one"):
        versions.publish(name)
    versions.refuse("three")
    Path(versions.root, "CURRENT").unlink()  # as between the two steps in which HDFS replaces it
    assert versions.current() == "one"


def test_the_oldest_go_and_the_one_in_use_stays(versions):
    for number in range(6):
        save(versions, f"v{number}")
    for number in (0, 2, 3, 4, 5, 1):
        versions.publish(f"v{number}")
    Path(versions.root, "CURRENT").write_text("v2")  # by hand
    assert versions.prune(2) == ["v0", "v3", "v4"]
    assert sorted(path.name for path in Path(versions.root, "versions").iterdir()) == ["v1", "v2", "v5"]
    assert versions.prune(3) == []
    with pytest.raises(InvalidInput, match="keep is 0; expected"):
        versions.prune(0)


def test_refused_ones_push_out_none_that_was_published_and_those_that_wait_stay(versions):
    for number in range(8):
        save(versions, f"v{number}")
    for number in (0, 1):
        versions.publish(f"v{number}")
    for number in (2, 3, 4, 5, 6):
        versions.refuse(f"v{number}")
    assert versions.prune(2) == ["v2", "v3", "v4"]
    assert versions.names() == ["v0", "v1", "v5", "v6", "v7"]  # the last waits for its gate
    versions.publish("v5")  # by hand, all the same
    assert versions.prune(2) == ["v0"]


def test_versions_are_in_the_order_in_which_they_were_completed(versions):
    for name in ("2026-02", "2026-01", "2026-03"):
        save(versions, name)
    for number, name in enumerate(("2026-03", "2026-02", "2026-01")):
        file = Path(versions.root, "versions", name, "version.json")
        file.write_text(json.dumps({"saved": number}))
    assert versions.names() == ["2026-03", "2026-02", "2026-01"]


def test_what_a_killed_run_has_left_goes_and_what_is_whole_stays(versions):
    files.write(f"{versions.model('half')}/weights", b"")
    save(versions, "whole")
    files.write(f"{versions.model('half of another')}/weights", b"")
    files.write(f"{versions.model('other')}/weights", b"")
    for prefix in ("half", "whole", "never there"):
        versions.discard(prefix)
    assert sorted(path.name for path in Path(versions.root, "versions").iterdir()) == ["other", "whole"]


def test_readers_find_a_whole_model_while_others_publish_and_prune(versions):
    save(versions, "first")
    versions.publish("first")
    over = threading.Event()

    def read() -> int:
        found = 0
        while not over.is_set() or not found:
            name = versions.current()
            found += Path(versions.model(str(name)), "weights").read_text() == name
        return found

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
