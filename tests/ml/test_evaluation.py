"""The text of figures; tests/cli/test_evaluate.py has the figures of saved models."""

from __future__ import annotations

from sparkdl.ml.evaluation import MOST_CLASSES, Classes


def test_scores():
    text = Classes({(0, 0): 3, (0, 1): 1, (2, 2): 100}).scores()
    assert text.splitlines() == [
        "accuracy 0.9904 (103 of 104 rows)",
        "",
        "confusion: a row for each label, a column for each prediction",
        "         0    1    2",
        "    0    3    1    .",
        "    1    .    .    .",
        "    2    .    .  100",
    ]
    assert Classes({}).scores() == "accuracy 0.0000 (0 of 0 rows), 0 classes"
    many = {(index, index): 1 for index in range(MOST_CLASSES + 1)}
    assert Classes(many).scores() == "accuracy 1.0000 (21 of 21 rows), 21 classes"
