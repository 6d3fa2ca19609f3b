"""Rows of tables are written from live memory to files of their own."""

from __future__ import annotations

import json

import pytest

from sparkdl.checkpoint.slices import SharedState, deal, files_of, row_files
from sparkdl.io.serialization import pack_state, unpack_state
from tests.checkpoint.test_checkpointer import STATE, cut, ordered, rowwise


@pytest.mark.parametrize(("saved", "resumed"), [(2, 3), (3, 1)])
def test_rows_in_files_of_their_own_are_live_and_read_by_workers_of_any_number(monkeypatch, saved, resumed):
    monkeypatch.setattr("sparkdl.checkpoint.slices._ROWS_FILE", 500)  # bytes
    files, index, divided = {}, {}, frozenset(["weight"])
    for rank in range(saved):
        live, slices = cut(STATE, rowwise(rank, saved)), rowwise(rank, saved)
        part, index[f"shared-{rank:05d}"] = deal(live, slices, rank, saved, divided=divided)
        files[f"shared-{rank:05d}"] = pack_state(part)
        for name, state, entries in row_files(live, slices, rank, divided):
            rows = state["model"]["weight"]
            assert rows.untyped_storage().data_ptr() == live["model"]["weight"].untyped_storage().data_ptr()
            files[name], index[name] = pack_state(state), json.loads(json.dumps(entries))
    assert len(files) == saved + 6
    for rank in range(resumed):
        state = SharedState({}, rowwise(rank, resumed))
        for name in files_of(index, rowwise(rank, resumed)):
            state.add(unpack_state(files[name], views=True), index[name])
        state.check()
        assert pack_state(ordered(state.state)) == pack_state(ordered(cut(STATE, rowwise(rank, resumed))))
