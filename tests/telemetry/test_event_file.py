"""Event files: written, counted and read lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sparkdl.telemetry import event_file as module
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.event_file import open_event_file
from sparkdl.telemetry.event_reader import read_events
from tests.listening import nobody
from tests.object_store import object_store


def event(number: int) -> Event:
    return Event("count", 0, 0, 1000.0 + number, None, {"number": number}, "a")


def lines(*events: Event) -> list[bytes]:
    return [event.to_json().encode() for event in events]


def test_lines_are_written_at_once(tmp_path: Path) -> None:
    file = open_event_file(tmp_path / "events", "driver")
    assert read_events(tmp_path / "events") == []
    assert not list(tmp_path.iterdir())
    assert file.append(lines(event(1), event(2))) == 2
    assert read_events(tmp_path / "events") == [event(1), event(2)]
    assert file.append(lines(event(3))) == 1
    assert len(read_events(tmp_path / "events")) == 3
    file.close()


def test_event_in_two_files_is_read_once(tmp_path: Path) -> None:
    sent = replace(event(1), recorder="a", number=1)
    received, second = replace(sent, received=1001.5), replace(sent, rank=1, recorder="b")
    for name, recorded in (("driver-1", received), ("rank-0", sent), ("rank-1", second)):
        open_event_file(tmp_path, name).append(lines(recorded))
    events = read_events(tmp_path)
    assert events == [received, second]
    assert events[0].received == 1001.5


def test_truncated_line_is_skipped(tmp_path: Path) -> None:
    open_event_file(tmp_path, "driver").append(lines(event(1)))
    with (tmp_path / "driver.jsonl").open("ab") as stream:
        stream.write(lines(event(2))[0][:20])
    with pytest.warns(RuntimeWarning, match="line 2 is skipped"):
        assert read_events(tmp_path) == [event(1)]
    open_event_file(tmp_path, "driver").append(lines(event(3)))  # begins on a line of its own
    with pytest.warns(RuntimeWarning, match="line 2 is skipped"):
        assert read_events(tmp_path) == [event(1), event(3)]


def test_full_disk_is_counted_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "driver.jsonl").symlink_to("/dev/full")
    file = open_event_file(tmp_path, "driver")
    assert [file.append(lines(event(number))) for number in range(3)] == [0, 0, 0]
    file.close()
    assert caplog.text.count("driver.jsonl cannot be written") == 1
    assert "No space left" in caplog.text


# ---- object stores: there is no append, and lines become files of their own ----------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory):
    with object_store(tmp_path_factory.mktemp("store")) as query:
        yield lambda name: f"s3://key:secret@runs/{name}?{query}"


def test_object_store_gets_collected_lines(store, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = store("one")
    file = open_event_file(folder, "driver")
    assert file.append(lines(event(1), event(2))) == 2
    file.flush()
    assert read_events(folder) == []
    monkeypatch.setattr(module, "SECONDS", 0.0)
    file.flush()
    assert read_events(folder) == [event(1), event(2)]
    monkeypatch.setattr(module, "SECONDS", 60.0)
    monkeypatch.setattr(module, "BYTES", 100)
    second = open_event_file(folder, "driver")  # as of another process: its files have other names
    second.append(lines(event(3)))
    second.flush()
    file.append(lines(event(4))[:1])
    file.close()
    assert read_events(folder) == [event(1), event(2), event(3), event(4)]
    assert file.lost == second.lost == 0


def test_unreachable_store_counts_lost_lines_and_hides_credentials(caplog: pytest.LogCaptureFixture) -> None:
    options = f"endpoint_override=127.0.0.1:{nobody().port}&scheme=http&region=us-east-1"
    file = open_event_file(f"s3://key:secret@runs/x?{options}", "driver")
    assert file.append(lines(event(1), event(2))) == 2
    file.close()
    assert file.lost == 2
    assert str(file) == "s3://runs/x/driver.jsonl"
    assert "secret" not in caplog.text
