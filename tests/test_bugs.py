"""What went wrong once: one test for each bug, with its story."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.group.world import World
from sparkdl.cluster.inline import InlineCluster
from sparkdl.data import batching
from sparkdl.data.arrow import decode
from sparkdl.data.batch import Batch
from sparkdl.data.batching import Batcher
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.sampler import Plan
from sparkdl.data.spool import Spool
from sparkdl.data.tables import split_rows
from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.io.weights import pack, unpack
from sparkdl.ml.persistence.factory import describe, resolve
from sparkdl.ml.run import Run
from sparkdl.rounds.algorithms.admm import ConsensusADMM
from sparkdl.rounds.algorithms.lbfgs import LBFGS
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.rounds.evaluate import as_only_shard, mass_of
from sparkdl.rounds.local_solvers import ConjugateGradient
from sparkdl.rounds.loop import Rounds
from sparkdl.rounds.parameters import flatten
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.loss import Criterion
from sparkdl.training.objective import Objective
from tests.contracts import algorithm_contract as rounds
from tests.data.spooled import parts_of, spooled
from tests.object_store import object_store

X = Columns((InputColumn("x"),))


def whole(target: torch.Tensor) -> Batch:
    return Batch((), target, None, None, len(target), float(len(target)), 1.0)


# ---- the feed --------------------------------------------------------------------------------------------------------


def test_seeds_above_32_bits_had_the_permutations_of_others() -> None:
    # Numpy's SeedSequence cuts its numbers into 32 bit words, strings them together and fills up with zeros. So the
    # key (seed 2^32 + 5, epoch 3, rank 0) gave the same words as (seed 5, epoch 1, rank 3), and (seed, rank), which
    # seeds a member's own random numbers, the same as (seed, epoch = rank, rank 0).
    first, second = Plan((500,) * 4, 8, seed=2**32 + 5), Plan((500,) * 4, 8, seed=5)
    assert not torch.equal(first.permutation(0, 3), second.permutation(3, 1))


def test_minus_one_became_255() -> None:
    # Whether an integer fits its dtype was decided by casting it there and back. Between dtypes of the same width
    # that is always right, so that int8 labels of -1 passed as uint8 255, and uint64 ids of 2^63 as negative int64.
    for given, dtype in ((pa.array([-1], pa.int8()), "uint8"), (pa.array([200], pa.uint8()), "int8")):
        with pytest.raises(InvalidInput, match=f"within {dtype}'s range"):
            decode(given, InputColumn("x", dtype))


def test_a_null_among_arrays_was_reported_as_an_array_of_length_0() -> None:
    # The lengths of lists were compared before nulls were looked for. To Arrow's offsets a null is a list of length 0,
    # so the user was told of "several lengths" and looked for ragged rows that did not exist.
    with pytest.raises(InvalidInput, match="has 1 nulls"):
        decode(pa.array([[1.0, 2.0], None, [3.0, 4.0]]), InputColumn("x"))


def test_no_rows_did_not_have_the_shape_that_was_given_for_them() -> None:
    # An array without rows has lists of unknown length, which counted as 0: a column with a shape of its own refused
    # every empty batch.
    assert decode(pa.array([], pa.list_(pa.float32())), InputColumn("x", shape=(1, 28, 28))).shape == (0, 1, 28, 28)


def test_wide_unsigned_columns_were_spooled_and_could_not_be_read() -> None:
    # uint16, uint32 and uint64 columns became torch tensors of those dtypes, which cannot be indexed: the first batch
    # failed with "index_select not implemented for 'UInt16'", after the whole part had been read.
    (part,) = parts_of([pa.table({"x": pa.array([1, 2, 65535], pa.uint16())})], X)
    (batch,) = Batcher(part, Plan((3,), 8, shuffle=False)).batches(0)
    assert batch.inputs[0].tolist() == [1, 2, 65535]


def test_ids_far_apart_were_taken_for_sorted() -> None:
    # Whether rows are in order was read off the differences of their ids, which wrap around: 2^62, -2^62 passed as
    # increasing, as did unsigned ids in any order. With hashes as ids a part's order then changed with the order of
    # arrival, and with it the result of a restarted attempt.
    for ids in (torch.tensor([2**62, -(2**62) - 1]), torch.tensor([9, 3, 5], dtype=torch.uint8)):
        order = Spool(X).order(ids)
        assert order is not None
        assert ids[order].tolist() == sorted(ids.tolist())


def test_batches_of_two_dtypes_were_written_into_one_file() -> None:
    # Only shapes were compared between batches, so that int64 rows behind int32 rows were read as int32: each as two
    # numbers, of which the second half was never seen.
    spool = spooled(X, pa.table({"x": pa.array([1], pa.int32())}).to_batches())
    with pytest.raises(InvalidInput, match=r"rows of int32 and shape .*, and of int64"):
        spool.append(pa.record_batch({"x": pa.array([1, 2], pa.int64())}))


def test_a_column_missing_from_one_member_was_another_column() -> None:
    # Of a list of tables only the first was checked, and the spool looked columns up by an index that is -1 where
    # there is no such column, or two: Arrow takes that for the last one. The member trained on whatever stood there.
    with pytest.raises(InvalidInput, match="there is no column 'x'"):
        split_rows([pa.table({"x": [1.0]}), pa.table({"z": [2.0], "y": [3.0]})], ["x"], 2)
    with pytest.raises(InvalidInput, match="there are 2 columns 'x'"):
        split_rows(pa.table([[1.0], [2.0], [3.0]], names=["x", "x", "y"]), ["x"], 1)
    with pytest.raises(KeyError):
        spooled(X, pa.table({"z": [2.0], "y": [3.0]}).to_batches())


def test_a_validation_column_of_arrays_doubled_rows() -> None:
    # Flags [rows, 1] instead of [rows] made `nonzero` give pairs, which were flattened into positions: every other
    # training row was row 0. Arrays of one are taken as their number now, and longer ones are refused.
    columns = Columns((InputColumn("x"),), validation=InputColumn("v", "bool"))
    (part,) = parts_of([pa.table({"x": [1, 2, 3], "v": [[False], [True], [False]]})], columns)
    assert [positions.tolist() for positions in part.split()] == [[0, 2], [1]]
    with pytest.raises(InvalidInput, match=r"column 'v' has rows of shape \(2,\); expected \(\)"):
        parts_of([pa.table({"x": [1], "v": [[False, True]]})], columns)


def test_data_without_input_columns_failed_on_the_members() -> None:
    # Without Spark, an empty list of columns was only noticed on a member, as a bare StopIteration.
    with pytest.raises(InvalidInput, match="there are no input columns"):
        split_rows({"x": np.zeros(3)}, [], 1)


def test_arrays_of_several_lengths_were_arrows_error() -> None:
    # A dict of arrays that are no table failed inside of pyarrow, without a word about which array it was.
    for data in ({"x": np.zeros(3), "y": np.zeros(4)}, {"x": np.zeros((3, 0)), "y": np.zeros(3)}):
        with pytest.raises(InvalidInput, match=r"the arrays have the shapes \{'x': \(3,.*'y': "):
            split_rows(data, None, 1)


def test_the_largest_part_gathered_far_more_than_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    # How many steps' rows are gathered at a time was reckoned as if all parts were equally long. A part with nearly
    # all of the rows, of a hundred parts, then held a hundred times the memory that is meant for it.
    monkeypatch.setattr(batching, "_GATHER_BYTES", 4000)
    rows = (5000, *([1] * 99))
    (part, *_) = parts_of([pa.table({"x": pa.array(range(n), pa.float32())}) for n in rows], X)
    chunks = list(Batcher(part, Plan(rows, 100))._chunks(0, 0, torch.device("cpu")))
    assert max(batch.inputs[0].nbytes for *_, batch in chunks) <= 2 * 4000


# ---- the objective ---------------------------------------------------------------------------------------------------


def test_label_156_was_ignored_among_unsigned_labels() -> None:
    # torch compares uint8 labels with an ignore_index of -100 in uint8, where that is 156. Rows of class 156 counted
    # nothing in the loss's denominator, although cross-entropy itself did not leave them out.
    criterion = Criterion(nn.CrossEntropyLoss())
    assert criterion.denominators(torch.tensor([155, 156, 157], dtype=torch.uint8)) is None


@pytest.mark.filterwarnings("error::UserWarning")
def test_whole_number_targets_were_broadcast_into_a_matrix() -> None:
    # Outputs [B, 1] were only made [B] for targets of floating point. An integer label beside nn.MSELoss gave the mean
    # over all B x B pairs, which is least where every output is the mean label; so did a target [B, 1] beside an
    # output [B]. Nothing but a warning in the log of a member told of it.
    output = torch.tensor([[1.0], [2.0]])
    assert Criterion(nn.MSELoss())(output, whole(torch.tensor([1, 2]))).item() == 0
    assert Criterion(nn.MSELoss())(output[:, 0], whole(torch.tensor([[1.0], [2.0]]))).item() == 0


def test_a_loss_class_was_called_as_a_loss() -> None:
    # nn.MSELoss without its parentheses is callable, so it was accepted, sent to the members, and failed there with
    # "Boolean value of Tensor with more than one value is ambiguous".
    with pytest.raises(InvalidInput, match=r"nn.MSELoss\(\)"):
        Objective(partial(nn.Linear, 2, 1), nn.MSELoss)  # type: ignore[arg-type]


def test_gradients_that_the_optimizer_never_saw_piled_up() -> None:
    # A step dropped the gradients by the optimizer's zero_grad(). Those of parameters that its factory had left out
    # grew from step to step, and clipping, which took them into the norm, made every step smaller than the one before.
    def head(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(list(parameters)[2:], lr=0.0)

    objective = Objective(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)), nn.MSELoss(), head)
    replica = Replicated().place(objective, World())
    replica.gradients(Batch((torch.ones(2, 1),), torch.ones(2, 1), None, None, 2, 2.0, 1.0))
    replica.apply()
    assert [parameter.grad for parameter in replica.parameters] == [None] * 4


# ---- weights and factories -------------------------------------------------------------------------------------------


def test_a_damaged_alias_was_a_key_error() -> None:
    # Tied weights are looked up by the names in the file's header, and that lookup was not among what counts as
    # reading: a header with another letter in such a name ended in a KeyError.
    module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    module[1].weight = module[0].weight
    packed = pack(module)
    assert b'\\"1.weight\\": \\"0.weight\\"' in packed
    with pytest.raises(InvalidInput, match="the saved weights cannot be read"):
        unpack(packed.replace(b'\\"1.weight\\": \\"0.weight\\"', b'\\"1.weight\\": \\"5.weight\\"'), module)


def test_a_view_as_another_dtype_was_saved_as_the_weight_itself() -> None:
    # Tensors at the same place were taken for one tensor whatever their dtype. A buffer that views the bits of a
    # weight came back as the weight's numbers, cut to integers, and in their common memory destroyed the weight.
    def make() -> nn.Module:
        module = nn.Linear(2, 2)
        module.register_buffer("bits", module.weight.detach().view(torch.int32))
        return module

    module, other = make(), make()
    unpack(pack(module), other)
    assert torch.equal(other.weight, module.weight)


class Named(nn.Module):
    def __init__(self, names: dict[object, str]) -> None:
        super().__init__()
        self.names = names


def test_dictionaries_with_numbers_as_keys_came_back_with_strings() -> None:
    # JSON has no other keys than strings and Python's writer turns numbers into them without a word, so a model that
    # was saved with {0: "cat"} was loaded with {"0": "cat"}. A list that contains itself, refused by the writer with a
    # ValueError, was not refused as an argument.
    with pytest.raises(InvalidInput, match=r"a dictionary has the keys \[0\], which are no strings"):
        describe(partial(Named, {0: "cat"}))
    circle: list[object] = []
    circle.append(circle)
    with pytest.raises(InvalidInput, match="not plain JSON"):
        describe(partial(Named, circle))


def test_a_missing_dependency_was_reported_as_a_missing_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A model whose own module was there, but not what that imports, "could not be imported": the reason was swallowed
    # and the advice was to ship the module that had been shipped.
    (tmp_path / "shipped.py").write_text("import not_shipped\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(InvalidInput, match="No module named 'not_shipped'"):
        resolve({"path": "shipped:Net", "args": [], "kwargs": {}})


# ---- files -----------------------------------------------------------------------------------------------------------


def test_a_question_mark_in_a_file_uri_ended_its_path(tmp_path: Path) -> None:
    # What follows a "?" or "#" in a URI is no path, but Spark's paths are not URIs in that sense. Of a model saved to
    # "model?1" Spark wrote the metadata there, and the weights became a file in the place of a directory "model".
    files.write(f"file:{tmp_path}/model?1/weights", b"data")
    assert os.listdir(tmp_path) == ["model?1"]


def test_a_file_uri_with_two_slashes_lost_its_first_directory(tmp_path: Path) -> None:
    # In "file://shared/runs" the first directory is a host. It was dropped, and the run was written to /runs.
    with pytest.raises(InvalidInput, match="names the host 'shared'; expected file:///path"):
        files.write("file://shared/runs/digits/report.json", b"{}")


def test_a_write_that_failed_left_its_file_behind(tmp_path: Path) -> None:
    # A file is written beside its place and renamed; when the rename failed, as onto a directory, what had been
    # written stayed there under its temporary name.
    (tmp_path / "taken" / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="taken"):
        files.write(str(tmp_path / "taken"), b"data")
    assert os.listdir(tmp_path) == ["taken"]


def test_a_saved_model_names_no_function_of_python_itself() -> None:
    """A saved model names its factory, which is called with arguments from the same file. Any name was called, so a
    forged model could run ``os.system`` when it was loaded, although nothing of it was unpickled.
    """
    with pytest.raises(InvalidInput, match=r"torch\.nn\.Module"):
        resolve({"path": "os:system", "args": ["true"], "kwargs": {}})
    with pytest.raises(InvalidInput, match=r"torch\.nn\.Module"):
        resolve({"path": "builtins:eval", "args": ["1"], "kwargs": {}})


def test_a_column_used_twice_keeps_what_either_use_asks_for() -> None:
    """A column that was input and label at once came as the input asked: the label's dtype was dropped in silence."""
    both = Columns((InputColumn("x"),), InputColumn("x", "int64"))
    assert [column.dtype for column in both] == ["int64"]
    with pytest.raises(InvalidInput, match="used twice"):
        list(Columns((InputColumn("x", "float32"),), InputColumn("x", "int64")))


def test_a_column_used_twice_forgot_that_one_use_wants_a_number() -> None:
    """A shape of () was taken for none at all: a column was input of shape (1,) and, as a number, something else."""
    with pytest.raises(InvalidInput, match=r"used twice, with shape=\(\) and with shape=\(1,\)"):
        list(Columns((InputColumn("x", shape=()), InputColumn("x", shape=(1,)))))
    assert [column.shape for column in Columns((InputColumn("x", shape=()),), InputColumn("x"))] == [()]


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_a_run_on_an_object_store_with_options_lost_its_files(tmp_path: Path) -> None:
    # The file's name was put behind the whole URI, so that it became a part of the last option: the run wrote nothing
    # where its directory was, and asked for the region "us-east-1/report.json".
    with object_store(tmp_path) as query:
        Run(f"s3://key:secret@runs/digits?{query}").save("report", {"rows": 7})
    assert (tmp_path / "runs/digits/report.json").read_bytes() == b'{\n  "rows": 7\n}\n'


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def test_a_relative_run_directory_was_another_one_in_every_process(tmp_path, monkeypatch) -> None:
    # Members looked it up from their own working directories: executors have one each, and a fit with
    # runDir="build/run" was refused as if its hosts shared no directory.
    (tmp_path / "driver").mkdir()
    monkeypatch.chdir(tmp_path / "driver")
    checkpoints = Checkpoints("run/checkpoints", run="a run")
    travelled = cloudpickle.dumps(checkpoints)
    monkeypatch.chdir(tmp_path)
    assert cloudpickle.loads(travelled).folder.path == str(tmp_path / "driver" / "run" / "checkpoints")
    assert checkpoints.folder.path == cloudpickle.loads(travelled).folder.path


# ---- rounds ----------------------------------------------------------------------------------------------------------


def test_a_client_weighed_as_much_as_all_rows_of_its_part() -> None:
    # What some of a part's rows weigh was the sum over all that are stored. With a weight column every client of a part
    # so had the same share in federated averaging, however few rows it had.
    own = as_only_shard(rounds.parts_of(90)[0], rounds.objective().criterion())
    weights = torch.from_numpy(rounds.data()["w"])
    assert mass_of(own.subset(torch.arange(10), (10,))) == pytest.approx(float(weights[:10].sum()))


def test_a_line_search_that_failed_forgot_the_best_point_it_had_seen() -> None:
    # It was looked for under a name that nothing was ever kept under, so that the run began the same search again, or
    # ended with worse weights than it had evaluated.
    algorithm, (part,) = LBFGS(maxls=1), rounds.parts_of(90)
    _, state = rounds.states(algorithm, [part], 1)
    trial = state["iterate"]["x"] + 1e-6 * state["direction"]  # better, but not by enough
    state = {**state, "trial": trial, "search": {**state["search"], "t": 1e-6}}
    update, _ = algorithm.map(rounds.objective(), state, part, None)
    after = algorithm.apply(state, update)
    assert torch.equal(flatten(after["weights"], after["names"]), trial)
    assert str(algorithm.metrics(after)["status"]).endswith("continues from the best point")


def test_a_quadratic_loss_was_not_quadratic_at_its_minimum() -> None:
    # Steps had to make the gradient small relative to where they began. With one part and no penalty they begin at the
    # minimum sooner or later, where both gradients are rounding, and squared errors were refused as not quadratic.
    algorithm = ConsensusADMM(solver=ConjugateGradient(), abs_tol=0, rel_tol=0)
    found = rounds.states(algorithm, rounds.parts_of(90), 60)
    assert found[-1]["round"] == 59


def test_a_mask_of_minus_infinity_was_a_result_that_is_not_finite() -> None:
    # It is a buffer, and buffers are averaged: the first round ended with advice about the learning rate.
    model = nn.Linear(4, 1)
    model.register_buffer("mask", torch.full((2, 2), -torch.inf))
    objective = Objective(model, nn.MSELoss(), precision="fp64")
    state, _ = Rounds(ParallelSGD(rounds=2), objective).run(rounds.jobs(2))
    assert bool((state["weights"]["mask"] == -torch.inf).all())


def test_not_a_number_of_rounds_never_ended() -> None:
    # NaN is not below 1, and no round is the last of so many.
    with pytest.raises(InvalidInput, match="ParallelSGD has rounds=nan; expected a whole number"):
        ParallelSGD(rounds=float("nan"))


def test_a_weight_of_two_names_went_back_to_where_it_began() -> None:
    # A state_dict has a tied parameter under each of its names, and only the first was trained. Whichever was loaded
    # last won: after every round the model began where it had begun the first.
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 3, bias=False)
            self.b = nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x))

    x = np.random.default_rng(5).normal(size=(40, 3))
    objective = Objective(Tied, nn.MSELoss(), precision="fp64")
    columns = Columns((InputColumn("x"),), InputColumn("y"), floating="float64")
    with InlineCluster().map_reduce({"x": x, "y": 2 * x}, columns, parts=2) as jobs:
        state, history = Rounds(LBFGS(gtol=1e-8), objective).run(jobs)
    assert history[-1]["objective"] < 1e-9
    assert list(state["weights"]) == ["a.weight"]
