"""Cleaning and splitting, on rows of Spark."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from sparkdl.cli.exit_codes import BadInput
from sparkdl.cli.pipeline.cleaning import Clean, Split
from sparkdl.errors import InvalidInput

DAY = date(2026, 11, 22)


def sides(rows, split):
    """The rows to train on, and those held out."""
    held = split(rows, DAY)
    return rows.where(~held), rows.where(held)


@pytest.fixture(scope="module")
def raw(spark):
    rows = [(n, f" {n % 5}", "yes." if n % 3 else "no", None if n == 7 else n) for n in range(200)]
    return spark.createDataFrame(rows, "id int, text string, answer string, maybe int").cache()


def test_rows_are_cleaned_by_sql(raw):
    clean = Clean(
        columns={"text": "cast(trim(text) as int)", "double": "2 * text"},
        label="cast(answer like 'yes%' as int)",
        where="maybe is not null",
        drop=["answer", "maybe"],
    )
    found = clean(raw, labelled=True)
    assert found.columns == ["id", "text", "double", "label"]
    assert found.count() == 199
    row = found.where("id = 13").first()
    assert (row["text"], row["double"], row["label"]) == (3, 6, 1)


def test_rows_to_be_scored_need_not_have_what_the_label_is_made_of(raw):
    clean = Clean(columns={"text": "trim(text)"}, label="answer = 'yes'", drop=["answer"])
    assert clean(raw.drop("answer"), labelled=False).columns == ["id", "text", "maybe"]
    with pytest.raises(BadInput, match=r"the raw rows have id, text, maybe, and cannot be cleaned: .*answer"):
        clean(raw.drop("answer"), labelled=True)


@pytest.mark.parametrize("where", ["nobody > 3", "this is no sql"])
def test_what_cannot_be_cleaned_says_what_the_rows_have(raw, where):
    with pytest.raises(BadInput, match="the raw rows have id, text, answer, maybe, and cannot be cleaned"):
        Clean(where=where)(raw, labelled=True)


def test_a_share_is_held_out_by_a_hash(raw):
    train, held = sides(raw, Split(share=0.25))
    ids = [{row["id"] for row in side.collect()} for side in (train, held)]
    assert not ids[0] & ids[1]
    assert ids[0] | ids[1] == set(range(200))
    assert 25 <= len(ids[1]) <= 75
    again = sides(raw.repartition(3), Split(share=0.25))[1]
    assert {row["id"] for row in again.collect()} == ids[1]  # on whatever partition, and tomorrow
    twice = sides(raw.union(raw), Split(share=0.25))[1]
    assert twice.count() == 2 * len(ids[1])  # equal rows on the same side


def test_some_columns_may_decide(raw):
    train, held = sides(raw, Split(hash=["text"], share=0.5))
    texts = [{row["text"] for row in side.select("text").distinct().collect()} for side in (train, held)]
    assert not texts[0] & texts[1]
    with pytest.raises(BadInput, match="split needs the columns who; the rows have id, text"):
        Split(hash=["who"])(raw, DAY)


@pytest.mark.parametrize("kind", ["date", "timestamp", "string"])
def test_the_last_days_are_held_out_and_later_ones_left_out(spark, kind):
    days = [(str(DAY - timedelta(days=n)),) for n in range(-3, 20)]
    rows = spark.createDataFrame(days, "day string").selectExpr(f"cast(day as {kind}) as day")
    train, held = sides(rows, Split(date="day", days=7))
    texts = [sorted(str(row["day"])[:10] for row in each.collect()) for each in (train, held)]
    assert texts[1] == [str(DAY - timedelta(days=n)) for n in range(6, -1, -1)]
    assert texts[0] == [str(DAY - timedelta(days=n)) for n in range(19, 6, -1)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"share": 0.0}, r"split\.share is 0\.0; expected a number between 0 and 1"),
        ({"days": 0, "date": "day"}, r"split\.days is 0; expected a number of days"),
        ({"date": "day", "hash": ["id"]}, "split has date and hash; expected one of them"),
    ],
)
def test_a_split_that_cannot_be_is_refused(given, said):
    with pytest.raises(InvalidInput, match=said):
        Split(**given)
