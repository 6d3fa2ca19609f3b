"""The scheduled pipeline on UCI's Adult, by spark-submit: runs that end, that are killed, refused, and two at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.ml import PipelineModel

from sparkdl.cli import saved_models
from sparkdl.cli.commands import run
from tests.cli.pipeline.adult import DAY, Adult
from tests.training.test_digits import finish

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(420)]

NEXT = "2026-11-23"


@pytest.fixture
def adult(tmp_path) -> Adult:
    return Adult(tmp_path)


def test_a_date_is_done_once_and_the_next_one_starts_from_its_weights(tmp_path, spark, nets):
    adult = Adult(tmp_path, options=())  # on executors
    adult.configured(warm_start=True)
    said, code = adult.run()
    assert code == 0, said
    done, version = adult.done(), adult.versions.current()
    assert done["passed"]
    assert done["version"] == version
    assert 0.88 < done["value"] < 0.93, said
    assert f"published {version}: areaUnderROC" in said
    assert adult.scored()[-2:] == ["prediction", "probability"]
    assert "hashed" not in adult.scored()
    assert not list(adult.root.glob("runs/*/*/data-*"))  # rows and checkpoints are of no more use
    assert not list(adult.root.glob("runs/*/*/train-*/checkpoints"))
    assert list(adult.root.glob("runs/*/*/train-*/events/*"))

    before = adult.files()
    said, code = adult.run()
    assert code == 0, said
    assert f"{DAY} is finished\n" in said
    assert adult.files() == before

    said, code = adult.run("--keep", "1", date=NEXT)
    assert code == 0, said
    later = adult.versions.current()
    assert later != version
    assert adult.versions.about(later)["start"] == version
    assert adult.versions.names() == [later]
    assert adult.done(NEXT)["current"] == version
    assert adult.done(NEXT)["in_use"] == pytest.approx(done["value"], abs=1e-3)  # Spark bins scores by a sample

    loaded = saved_models.load(spark, str(adult.root))  # as jobs/predict.py and jobs/evaluate.py take it
    assert isinstance(loaded, PipelineModel)


DONE = {
    "after ETL": {"etl", "start"},
    "in training": {"etl", "start"},
    "between publish and score": {"etl", "start", "train", "gate", "publish"},
}


def planted(place: str, mark: str) -> dict[str, Any]:
    """What kills the driver there."""
    if place == "in training":
        hook = {"class_path": "faulty.DiesInTraining", "init_args": {"mark": mark, "epoch": 2}}
        return {"hooks": [hook], "checkpointInterval": "1 epoch", "epochs": 12}
    scoring = place == "between publish and score"
    return {"stages": [{"class_path": "faulty.Dies", "init_args": {"mark": mark, "scoring": scoring}}]}


@pytest.mark.chaos
@pytest.mark.parametrize("place", DONE)
def test_a_run_that_is_killed_goes_on_where_it_was(adult, place):
    adult.configured(**planted(place, str(adult.folder / "mark")))
    said, code = adult.run()
    assert code != 0, said
    assert (adult.folder / "mark").exists(), said
    assert adult.stages() == DONE[place]
    assert adult.scored() is None
    published = adult.versions.current()
    assert (published is not None) == (place == "between publish and score")
    before = {path: path.stat().st_mtime_ns for path in adult.root.glob(f"runs/{DAY}/*/etl.json")}

    said, code = adult.run()
    assert code == 0, said
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert adult.done()["passed"]
    assert adult.scored() is not None
    assert published in (None, adult.versions.current())
    assert len(list(adult.root.glob("versions/*"))) == 1
    if place == "in training":
        assert "epoch 12/12" in said
        assert "epoch 1/12" not in said, said  # the first epochs are not trained again


def test_a_bad_model_is_refused_and_the_one_in_use_scores(adult):
    adult.configured()
    said, code = adult.run()
    assert code == 0, said
    good = adult.versions.current()

    rate = {"class_path": "torch.optim.SGD", "init_args": {"lr": 1e-12}}  # as good as untrained
    adult.configured(optimizer=rate, gate={"margin": 0.005})
    for _ in range(2):  # a date that was refused is finished as well, and ends in the same way
        said, code = adult.run(date=NEXT)
        assert code == 3, said
        assert f"the model of {NEXT} is not published; {good} is in use" in said
    assert adult.versions.current() == good
    assert adult.done(NEXT)["scores"]["version"] == good
    assert adult.scored(NEXT) is not None

    adult.configured(optimizer=rate)  # whose gate asks for 0.85 whatever is in use
    Adult(adult.folder).versions.publish(adult.done(NEXT)["version"])  # a bad one by hand
    said, code = adult.run(date="2026-11-24")
    assert code == 3, said


@pytest.mark.chaos
@pytest.mark.parametrize("dates", [(DAY, DAY), (DAY, NEXT)], ids=["of one date", "of two dates"])
def test_two_at_once_leave_whole_models_and_scores(adult, dates):
    adult.configured()
    over = threading.Event()

    def watch() -> int:
        """Look all the time, as readers may."""
        looks = 0
        while not over.is_set():
            version = adult.versions.current()  # raises where CURRENT names one that is not whole
            assert version is None or adult.versions.about(version)["saved"]
            for date in dates:
                adult.scored(date)  # asserts that all are there, where there are any
            looks += 1
            over.wait(0.05)
        return looks

    with ThreadPoolExecutor(1) as pool:
        watched = pool.submit(watch)
        try:
            processes = [adult.start(date=date) for date in dates]
            ended = [finish(process, timeout=180) for process in processes]
        finally:
            over.set()
        assert watched.result() > 10
    codes = sorted(code for _, code in ended)
    assert codes == [0, 0] if dates[0] != dates[1] else codes in ([0, 0], [0, 5]), ended
    for date in set(dates):
        assert adult.scored(date) is not None
        assert adult.done(date)["passed"]
    assert adult.versions.current() in {adult.done(date)["version"] for date in dates}
    assert set(adult.versions.names()) >= {adult.done(date)["version"] for date in dates}


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--data.path", "/nowhere/{date}.csv"], 4, "/nowhere/2026-11-22.csv"),
        (["--clean.where", "age > 1000"], 4, "no rows are to train on"),
        (["--clean.where", "wage > 1000"], 4, "cannot be cleaned"),
        (["--clean.label", "cast(null as int)"], 4, "have no label"),
        (["--clean.drop", "[fnlwgt, Y, race]"], 4, "race"),
        (["--clean.label", "cast(sex as int)"], 4, "CAST_INVALID_INPUT"),
        (["--date", "yesterday"], 2, "date is 'yesterday'; expected one as 2026-11-22"),
        (["--keep", "0"], 2, "keep is 0; expected a number of versions"),
        (["--gate.margin", "-1"], 2, "gate.margin is -1.0; expected"),
    ],
)
def test_what_is_wrong_is_told_by_the_exit_code(adult, here, capsys, arguments, code, told):
    assert here(adult, *arguments) == code
    assert told in capsys.readouterr().err
    assert adult.versions.current() is None


@pytest.fixture
def here(spark, nets, monkeypatch):
    """Run the job in this process, on its session, which outlives the job."""
    monkeypatch.setattr(type(spark), "__exit__", lambda *_: None)

    def here(adult: Adult, *arguments: str) -> int:
        config = ["--config", str(adult.configured()), *([] if "--date" in arguments else ["--date", DAY])]
        return run("etl_train", [*config, *arguments])

    return here
