"""Checks as lines."""

from __future__ import annotations

from sparkdl.spark.diagnosis.check import Check, judged, listed


def test_line_has_status_name_and_text():
    assert Check("disk", "ok", "2 GB\n free").line == "ok    disk                2 GB free"
    assert Check("dynamic allocation", "FAIL", "on").line == "FAIL  dynamic allocation  on"


def test_check_fails_with_findings_and_remedy():
    assert judged("disk", [], "Free space.", otherwise="2 GB free") == Check("disk", "ok", "2 GB free")
    assert judged("disk", ["a", "b"], "Free space.", otherwise="") == Check("disk", "FAIL", "a; b. Free space.")


def test_long_list_of_findings_is_counted():
    assert listed("abcd") == "a; b; c; d"
    assert listed("abcdef") == "a; b; c; d; 2 more"
