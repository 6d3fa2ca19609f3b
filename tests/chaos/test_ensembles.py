"""What finished members are kept in: damaged in every file, used by two drivers at once, on a disk that is full."""

from __future__ import annotations

import errno
import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sparkdl import TorchClassifier
from sparkdl.cluster.inline import InlineCluster
from sparkdl.ensembles.members import task_fits, task_work
from sparkdl.ensembles.members.member import Member, Plan, Rows
from sparkdl.ensembles.members.store import MemberStore
from sparkdl.ensembles.members.task_fits import fit_in_tasks
from sparkdl.ensembles.resampling.bootstrap import Bootstrap, member_seed
from sparkdl.errors import Fenced, InvalidInput, WorkerFailed
from sparkdl.io.files import Folder
from tests.chaos.runs import Momentum
from tests.faults import flip, tear

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]

MEMBERS = 4
ALL = list(range(MEMBERS))
CONFIGURATION = {"ensemble": "Bagging", "rows": "60 rows", "base 0": {"epochs": "1"}}


class Net(nn.Module):
    """Two scores; calls a function in the first batch of training of each member."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.begun = nn.Linear(3, 2), False

    def forward(self, x: Tensor) -> Tensor:
        if self.training and not self.begun:
            self.begun = True
            _begins()
        found: Tensor = self.inner(x)
        return found


@dataclass
class _Watch:
    """How many members have begun, and what is done when another one does."""

    begun: int = 0
    then: dict[int, Callable[[], None]] = field(default_factory=dict)


_watch = _Watch()


def _begins() -> None:
    _watch.begun += 1
    _watch.then.pop(_watch.begun, lambda: None)()


@dataclass(frozen=True)
class Data:
    """Stands for a DataFrame."""

    arrays: dict[str, np.ndarray]
    sparkSession: None = None  # noqa: N815 - as Spark calls it


class Here:
    """Stands for Spark's cluster: tasks run one after the other in this process."""

    def __init__(self, session: None, size: int, **_: Any) -> None:
        pass

    def map_reduce(self, data: Data, columns: Any, *, shuffle: bool, listener: Any = None) -> Any:
        return InlineCluster().map_reduce(data.arrays, columns, parts=2, shuffle=shuffle, listener=listener)


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(task_fits, "SparkCluster", Here)
    monkeypatch.setattr(task_work, "BREATH", 0.0)
    _watch.begun = 0
    yield
    assert not _watch.then


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Tensor]]:
    """The directory of an ensemble to which nothing happened, and its members' weights."""
    folder = tmp_path_factory.mktemp("quiet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_fits, "SparkCluster", Here)
        return folder, fit(folder)[0]


def members() -> list[Member]:
    base = TorchClassifier(
        model=Net, optimizer=partial(Momentum, lr=0.1), inputCols=["x"], batchSize=10, epochs=1, idCol="id"
    )
    seeds = [member_seed(0, index) for index in ALL]
    return [Member(index, base.copy({base.seed: seed}), Bootstrap(1.0, True, seed)) for index, seed in enumerate(seeds)]


def rows() -> Rows:
    draw = np.random.default_rng(2)
    x = draw.normal(size=(60, 3))
    return Rows(Data({"id": np.arange(60), "x": x, "label": (x.sum(1) > 0).astype(np.int64)}), "id")  # type: ignore[arg-type]


def fit(folder: Path, configuration: dict[str, Any] = CONFIGURATION) -> tuple[list[Tensor], list[int]]:
    """What a driver does: the members' weights, and which were trained."""
    kept = MemberStore(str(folder))
    kept.begin(configuration)
    try:
        found = fit_in_tasks(members(), rows(), Plan(kept))
    finally:
        kept.end()
    assert sorted([*found.trained, *found.restored]) == ALL
    return [weights(model) for model in found.models], found.trained


def weights(model: Any) -> Tensor:
    return torch.cat([each.flatten() for each in model.module().state_dict().values()])


def same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


WHOLE = ["ensemble.json", *(f"members/member-{index:05d}" for index in ALL)]

# ---- damage ----------------------------------------------------------------------------------------------------------

DAMAGE: dict[str, Callable[[Path], None]] = {
    "first": lambda path: flip(path, 0),
    "middle": lambda path: flip(path, path.stat().st_size // 2),
    "last": flip,
    "torn": tear,
    "empty": lambda path: path.write_bytes(b""),
    "other": lambda path: shutil.copy(path.with_name(f"member-{1 - int(path.name[-1]) % 2:05d}"), path),
}


@pytest.fixture
def copy(quiet: tuple[Path, list[Tensor]], tmp_path: Path) -> Path:
    """A copy of the directory to which nothing has happened yet."""
    return Path(shutil.copytree(quiet[0], tmp_path / "run"))


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("member", ALL)
def test_a_damaged_member_is_trained_again_and_no_other(quiet, copy, member, how):
    DAMAGE[how](copy / f"members/member-{member:05d}")
    with pytest.warns(UserWarning, match=f"what is kept of member {member}, .*cannot be used, and it is trained again"):
        found, trained = fit(copy)
    assert same(found, quiet[1])
    assert trained == [member]
    assert _watch.begun == 1
    assert_sound(copy, quiet)


def assert_sound(folder: Path, quiet: tuple[Path, list[Tensor]]) -> None:
    """Nothing but whole members, and the same fit again trains none."""
    assert names(folder) == WHOLE
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, trained = fit(folder)
    assert same(found, quiet[1])
    assert trained == []
    assert names(folder) == WHOLE


def test_members_that_are_all_damaged_are_all_trained_again(quiet, copy):
    for member, how in enumerate(["first", "torn", "last", "empty"]):
        DAMAGE[how](copy / f"members/member-{member:05d}")
    with pytest.warns(UserWarning, match="cannot be used"):
        found, trained = fit(copy)
    assert same(found, quiet[1])
    assert trained == ALL
    assert_sound(copy, quiet)


@pytest.mark.parametrize("how", [how for how in DAMAGE if how != "other"])
def test_members_are_nobodys_when_whose_they_are_is_damaged(quiet, copy, how):
    DAMAGE[how](copy / "ensemble.json")
    before = {name: (copy / name).read_bytes() for name in names(copy)}
    with pytest.raises(InvalidInput, match="another runDir"):
        fit(copy)
    assert {name: (copy / name).read_bytes() for name in names(copy)} == before
    (copy / "ensemble.json").write_bytes((quiet[0] / "ensemble.json").read_bytes())
    assert_sound(copy, quiet)


# ---- two drivers at once ---------------------------------------------------------------------------------------------


def test_a_second_driver_trains_all_while_the_first_trains_a_member(quiet, tmp_path):
    """The first may keep nothing any more; what it has kept before counts, and it ends with a reason."""
    second: list[Any] = []
    _watch.then[3] = lambda: second.append(fit(tmp_path))
    with pytest.raises(Fenced, match=r"member 2: another fit has begun to keep members in .*: .* fit again"):
        fit(tmp_path)
    ((found, trained),) = second
    assert same(found, quiet[1])
    assert trained == [2, 3]
    assert _watch.begun == 3 + 2  # the first finds member 3 finished
    assert_sound(tmp_path, quiet)


def test_the_first_driver_goes_on_while_the_second_trains(quiet, tmp_path):
    """Members that one of them has finished are none of the other's work, whoever is faster."""
    other = MemberStore(str(tmp_path))
    _watch.then[2] = lambda: other.begin(CONFIGURATION)
    with pytest.raises(Fenced, match=r"member 1: .* Members \[2, 3\] failed as well. 1 of 4 .* 1 are kept"):
        fit(tmp_path)
    assert names(tmp_path) == ["ensemble.json", "members/member-00000", f"members/visible-{other.token}"]
    found = fit_in_tasks(members(), rows(), Plan(other))
    assert same([weights(model) for model in found.models], quiet[1])
    assert found.restored == [0]
    other.end()
    assert_sound(tmp_path, quiet)


def test_a_second_driver_of_another_ensemble_does_the_first_no_harm(quiet, tmp_path):
    def other() -> None:
        with pytest.raises(
            InvalidInput, match=r"another ensemble, and these differ: base 0\.epochs was '1' and is '2'"
        ):
            fit(tmp_path, {**CONFIGURATION, "base 0": {"epochs": "2"}})

    _watch.then[2] = other
    found, trained = fit(tmp_path)
    assert same(found, quiet[1])
    assert trained == ALL
    assert_sound(tmp_path, quiet)


def test_a_step_that_is_taken_again_has_trained_what_it_has_kept(tmp_path):
    kept = MemberStore(str(tmp_path))
    kept.begin(CONFIGURATION)
    fit_in_tasks(members()[:2], rows(), Plan(kept))
    found = fit_in_tasks(members(), rows(), Plan(kept))
    assert (found.trained, found.restored, _watch.begun) == (ALL, [], MEMBERS)
    kept.end()


# ---- disks -----------------------------------------------------------------------------------------------------------


@dataclass
class Full:
    """A disk that is full for some writes of a member, of which the first half is written."""

    member: int
    writes: int
    write: Any = Folder.write

    def __call__(self, folder: Folder, name: str, *data: Any) -> None:
        if name != f"member-{self.member:05d}" or not self.writes:
            self.write(folder, name, *data)
            return
        self.writes -= 1
        Path(folder.at(f"{name}.abc.tmp")).write_bytes(bytes(data[0]))  # as of a process that then was killed
        raise OSError(errno.ENOSPC, "No space left on device")

    def method(self) -> Callable[..., None]:
        """In the place of ``Folder.write``: only a function is given the folder."""

        def write(folder: Folder, name: str, *data: Any) -> None:
            self(folder, name, *data)

        return write


@pytest.mark.parametrize("member", [0, 2])
def test_a_disk_that_is_full_while_a_member_is_kept(quiet, tmp_path, monkeypatch, member):
    full = Full(member, 100)
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "write", full.method())
        with pytest.raises(
            WorkerFailed,
            match=rf"member {member}: .*cannot be kept.*No space left on device.*3 of 4 members are finished and 3 are",
        ):
            fit(tmp_path)
    found, trained = fit(tmp_path)
    assert same(found, quiet[1])
    assert trained == [member]
    assert_sound(tmp_path, quiet)


def test_a_disk_that_is_full_for_a_moment(quiet, tmp_path, monkeypatch):
    """A member is not trained again because of it."""
    full = Full(1, 1)
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "write", full.method())
        found, trained = fit(tmp_path)
    assert same(found, quiet[1])
    assert (trained, full.writes, _watch.begun) == (ALL, 0, MEMBERS)
    assert fit(tmp_path)[1] == []  # which takes away what was written in part
    assert_sound(tmp_path, quiet)


def test_a_disk_that_is_full_before_anything_is_kept(tmp_path, monkeypatch):
    def full(folder: Folder, name: str, *data: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "write", full)
        with pytest.raises(OSError, match="No space left on device"):
            fit(tmp_path)
    assert _watch.begun == 0
    fit(tmp_path)
    assert json.loads((tmp_path / "ensemble.json").read_text())["configuration"] == CONFIGURATION
