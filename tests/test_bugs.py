"""Fixed bugs: a test for each, with its story."""

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


def test_seeds_above_32_bits_repeated_permutations() -> None:
    # numpy's SeedSequence joins 32-bit words: (seed 2^32 + 5, epoch 3, rank 0) was (seed 5, epoch 1, rank 3).
    first, second = Plan((500,) * 4, 8, seed=2**32 + 5), Plan((500,) * 4, 8, seed=5)
    assert not torch.equal(first.permutation(0, 3), second.permutation(3, 1))


def test_minus_one_became_255() -> None:
    # A cast there and back is exact between dtypes of one width, so int8 labels of -1 passed as uint8 255.
    for given, dtype in ((pa.array([-1], pa.int8()), "uint8"), (pa.array([200], pa.uint8()), "int8")):
        with pytest.raises(InvalidInput, match=f"within {dtype}'s range"):
            decode(given, InputColumn("x", dtype))


def test_null_among_arrays_was_an_array_of_length_0() -> None:
    # Lengths were compared before nulls: to Arrow's offsets a null is a list of length 0, so rows looked ragged.
    with pytest.raises(InvalidInput, match="has 1 nulls"):
        decode(pa.array([[1.0, 2.0], None, [3.0, 4.0]]), InputColumn("x"))


def test_empty_batch_lost_its_shape() -> None:
    # Lists of no rows have an unknown length, which counted as 0: a column with a shape rejected every empty batch.
    assert decode(pa.array([], pa.list_(pa.float32())), InputColumn("x", shape=(1, 28, 28))).shape == (0, 1, 28, 28)


def test_wide_unsigned_columns_were_spooled_and_could_not_be_read() -> None:
    # torch cannot index uint16, uint32 and uint64 tensors: the first batch failed after the whole shard had been read.
    (shard,) = parts_of([pa.table({"x": pa.array([1, 2, 65535], pa.uint16())})], X)
    (batch,) = Batcher(shard, Plan((3,), 8, shuffle=False)).batches(0)
    assert batch.inputs[0].tolist() == [1, 2, 65535]


def test_ids_far_apart_were_taken_for_sorted() -> None:
    # Differences of ids wrap around: 2^62, -2^62 passed as increasing, so rows kept the order of arrival.
    for ids in (torch.tensor([2**62, -(2**62) - 1]), torch.tensor([9, 3, 5], dtype=torch.uint8)):
        order = Spool(X).order(ids)
        assert order is not None
        assert ids[order].tolist() == sorted(ids.tolist())


def test_batches_of_two_dtypes_were_written_into_one_file() -> None:
    # Only shapes were compared between batches: int64 rows behind int32 rows were read as two numbers each.
    spool = spooled(X, pa.table({"x": pa.array([1], pa.int32())}).to_batches())
    with pytest.raises(InvalidInput, match=r"rows of int32 and shape .*, and of int64"):
        spool.append(pa.record_batch({"x": pa.array([1, 2], pa.int64())}))


def test_column_missing_from_one_table_was_another_column() -> None:
    # Only the first table was checked, and the index -1 of a missing column is Arrow's last column.
    with pytest.raises(InvalidInput, match="there is no column 'x'"):
        split_rows([pa.table({"x": [1.0]}), pa.table({"z": [2.0], "y": [3.0]})], ["x"], 2)
    with pytest.raises(InvalidInput, match="there are 2 columns 'x'"):
        split_rows(pa.table([[1.0], [2.0], [3.0]], names=["x", "x", "y"]), ["x"], 1)
    with pytest.raises(KeyError):
        spooled(X, pa.table({"z": [2.0], "y": [3.0]}).to_batches())


def test_validation_column_of_arrays_doubled_rows() -> None:
    # Flags [rows, 1] made `nonzero` give pairs, flattened into positions: every other training row was row 0.
    columns = Columns((InputColumn("x"),), validation=InputColumn("v", "bool"))
    (shard,) = parts_of([pa.table({"x": [1, 2, 3], "v": [[False], [True], [False]]})], columns)
    assert [positions.tolist() for positions in shard.split()] == [[0, 2], [1]]
    with pytest.raises(InvalidInput, match=r"column 'v' has rows of shape \(2,\); expected \(\)"):
        parts_of([pa.table({"x": [1], "v": [[False, True]]})], columns)


def test_data_without_input_columns_failed_on_workers() -> None:
    # Without Spark, a worker noticed an empty list of columns, as a bare StopIteration.
    with pytest.raises(InvalidInput, match="there are no input columns"):
        split_rows({"x": np.zeros(3)}, [], 1)


def test_arrays_of_several_lengths_were_an_error_of_arrow() -> None:
    # A dict of arrays that are no table failed inside pyarrow, which does not name the array.
    for data in ({"x": np.zeros(3), "y": np.zeros(4)}, {"x": np.zeros((3, 0)), "y": np.zeros(3)}):
        with pytest.raises(InvalidInput, match=r"the arrays have the shapes \{'x': \(3,.*'y': "):
            split_rows(data, None, 1)


def test_largest_shard_gathered_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    # The chunk size assumed equal shards: the one with nearly all rows held a hundred times its share.
    monkeypatch.setattr(batching, "_GATHER_BYTES", 4000)
    rows = (5000, *([1] * 99))
    (shard, *_) = parts_of([pa.table({"x": pa.array(range(n), pa.float32())}) for n in rows], X)
    chunks = list(Batcher(shard, Plan(rows, 100))._chunks(0, 0, torch.device("cpu")))
    assert max(batch.inputs[0].nbytes for *_, batch in chunks) <= 2 * 4000


def test_label_156_was_ignored_among_unsigned_labels() -> None:
    # torch compares uint8 labels with an ignore_index of -100 in uint8, where that is 156: such rows lost theirs.
    criterion = Criterion(nn.CrossEntropyLoss())
    assert criterion.denominators(torch.tensor([155, 156, 157], dtype=torch.uint8)) is None


@pytest.mark.filterwarnings("error::UserWarning")
def test_whole_number_targets_were_broadcast_into_a_matrix() -> None:
    # Outputs [B, 1] beside integer targets [B], or the reverse, gave the mean over all B x B pairs and a warning.
    output = torch.tensor([[1.0], [2.0]])
    assert Criterion(nn.MSELoss())(output, whole(torch.tensor([1, 2]))).item() == 0
    assert Criterion(nn.MSELoss())(output[:, 0], whole(torch.tensor([[1.0], [2.0]]))).item() == 0


def test_loss_class_was_called_as_a_loss() -> None:
    # nn.MSELoss without parentheses is callable: it failed on the workers with "Boolean value of Tensor ...".
    with pytest.raises(InvalidInput, match=r"nn.MSELoss\(\)"):
        Objective(partial(nn.Linear, 2, 1), nn.MSELoss)  # type: ignore[arg-type]


def test_gradients_outside_the_optimizer_piled_up() -> None:
    # Only the optimizer's zero_grad dropped gradients: those of other parameters grew, and clipping shrank each step.
    def head(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(list(parameters)[2:], lr=0.0)

    objective = Objective(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)), nn.MSELoss(), head)
    replica = Replicated().place(objective, World())
    replica.gradients(Batch((torch.ones(2, 1),), torch.ones(2, 1), None, None, 2, 2.0, 1.0))
    replica.apply()
    assert [parameter.grad for parameter in replica.parameters] == [None] * 4


def test_damaged_alias_was_a_key_error() -> None:
    # Tied weights are looked up by names in the header: a damaged name raised KeyError.
    module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    module[1].weight = module[0].weight
    packed = pack(module)
    assert b'\\"1.weight\\": \\"0.weight\\"' in packed
    with pytest.raises(InvalidInput, match="the saved weights cannot be read"):
        unpack(packed.replace(b'\\"1.weight\\": \\"0.weight\\"', b'\\"1.weight\\": \\"5.weight\\"'), module)


def test_view_as_another_dtype_was_saved_as_the_weight() -> None:
    # Tensors at one address counted as one: a buffer with a weight's bits came back as numbers, and destroyed it.
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
    # JSON turns number keys into strings: {0: "cat"} was loaded as {"0": "cat"}. A list in itself raised ValueError.
    with pytest.raises(InvalidInput, match=r"a dictionary has the keys \[0\], which are no strings"):
        describe(partial(Named, {0: "cat"}))
    circle: list[object] = []
    circle.append(circle)
    with pytest.raises(InvalidInput, match="not plain JSON"):
        describe(partial(Named, circle))


def test_missing_dependency_was_a_missing_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # If a model's module lacked a dependency, the error named the module that had been shipped.
    (tmp_path / "shipped.py").write_text("import not_shipped\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(InvalidInput, match="No module named 'not_shipped'"):
        resolve({"path": "shipped:Net", "args": [], "kwargs": {}})


def test_question_mark_in_a_file_uri_ended_its_path(tmp_path: Path) -> None:
    # Spark's paths have no query: of "model?1" Spark wrote the metadata there, and the weights went to a file "model".
    files.write(f"file:{tmp_path}/model?1/weights", b"data")
    assert os.listdir(tmp_path) == ["model?1"]


def test_file_uri_with_two_slashes_lost_its_first_directory(tmp_path: Path) -> None:
    # In "file://shared/runs" the first directory is a host. It was dropped, and the run was written to /runs.
    with pytest.raises(InvalidInput, match="names the host 'shared'; expected file:///path"):
        files.write("file://shared/runs/digits/report.json", b"{}")


def test_failed_write_left_its_file_behind(tmp_path: Path) -> None:
    # A file is written beside its place and renamed; a failed rename left the temporary file.
    (tmp_path / "taken" / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="taken"):
        files.write(str(tmp_path / "taken"), b"data")
    assert os.listdir(tmp_path) == ["taken"]


def test_saved_model_named_a_function_of_python() -> None:
    # A saved model names its factory, and any name was called: a forged model could run ``os.system``.
    with pytest.raises(InvalidInput, match=r"torch\.nn\.Module"):
        resolve({"path": "os:system", "args": ["true"], "kwargs": {}})
    with pytest.raises(InvalidInput, match=r"torch\.nn\.Module"):
        resolve({"path": "builtins:eval", "args": ["1"], "kwargs": {}})


def test_column_used_twice_lost_a_dtype() -> None:
    # A column that was input and label had the input's dtype; the label's was dropped in silence.
    both = Columns((InputColumn("x"),), InputColumn("x", "int64"))
    assert [column.dtype for column in both] == ["int64"]
    with pytest.raises(InvalidInput, match="used twice"):
        list(Columns((InputColumn("x", "float32"),), InputColumn("x", "int64")))


def test_column_used_twice_lost_a_shape() -> None:
    # A shape of () counted as none: a column was an input of shape (1,) and a number elsewhere.
    with pytest.raises(InvalidInput, match=r"used twice, with shape=\(\) and with shape=\(1,\)"):
        list(Columns((InputColumn("x", shape=()), InputColumn("x", shape=(1,)))))
    assert [column.shape for column in Columns((InputColumn("x", shape=()),), InputColumn("x"))] == [()]


def test_run_on_an_object_store_with_options_lost_its_files(tmp_path: Path) -> None:
    # The file's name went behind the whole URI: the run asked for the region "us-east-1/report.json".
    with object_store(tmp_path) as query:
        Run(f"s3://key:secret@runs/digits?{query}").save("report", {"rows": 7})
    assert (tmp_path / "runs/digits/report.json").read_bytes() == b'{\n  "rows": 7\n}\n'


def test_relative_run_directory_differed_in_every_process(tmp_path, monkeypatch) -> None:
    # Workers resolved it in their own working directories, so its hosts seemed to share no directory.
    (tmp_path / "driver").mkdir()
    monkeypatch.chdir(tmp_path / "driver")
    checkpoints = Checkpoints("run/checkpoints", run="a run")
    travelled = cloudpickle.dumps(checkpoints)
    monkeypatch.chdir(tmp_path)
    assert cloudpickle.loads(travelled).folder.path == str(tmp_path / "driver" / "run" / "checkpoints")
    assert checkpoints.folder.path == cloudpickle.loads(travelled).folder.path


def test_client_weighed_as_much_as_its_shard() -> None:
    # The weight of a subset was the sum over the whole shard: all clients of a shard had the same share.
    own = as_only_shard(rounds.parts_of(90)[0], rounds.objective().criterion())
    weights = torch.from_numpy(rounds.data()["w"])
    assert mass_of(own.subset(torch.arange(10), (10,))) == pytest.approx(float(weights[:10].sum()))


def test_failed_line_search_forgot_its_best_point() -> None:
    # Its name was never written: the run repeated the search, or ended with worse weights than it had evaluated.
    algorithm, (shard,) = LBFGS(maxls=1), rounds.parts_of(90)
    _, state = rounds.states(algorithm, [shard], 1)
    trial = state["iterate"]["x"] + 1e-6 * state["direction"]  # better, but not by enough
    state = {**state, "trial": trial, "search": {**state["search"], "t": 1e-6}}
    update, _ = algorithm.map(rounds.objective(), state, shard, None)
    after = algorithm.apply(state, update)
    assert torch.equal(flatten(after["weights"], after["names"]), trial)
    assert str(algorithm.metrics(after)["status"]).endswith("continues from the best point")


def test_quadratic_loss_was_not_quadratic_at_its_minimum() -> None:
    # Tolerances were relative to the first gradient. At the minimum both are rounding, and the loss was rejected.
    algorithm = ConsensusADMM(solver=ConjugateGradient(), abs_tol=0, rel_tol=0)
    found = rounds.states(algorithm, rounds.parts_of(90), 60)
    assert found[-1]["round"] == 59


def test_mask_of_minus_infinity_was_not_finite() -> None:
    # It is a buffer, and buffers are averaged: the first round ended with advice about the learning rate.
    model = nn.Linear(4, 1)
    model.register_buffer("mask", torch.full((2, 2), -torch.inf))
    objective = Objective(model, nn.MSELoss(), precision="fp64")
    state, _ = Rounds(ParallelSGD(rounds=2), objective).run(rounds.jobs(2))
    assert bool((state["weights"]["mask"] == -torch.inf).all())


def test_nan_rounds_never_ended() -> None:
    # NaN is not below 1, and no round is the last of so many.
    with pytest.raises(InvalidInput, match="ParallelSGD has rounds=nan; expected a whole number"):
        ParallelSGD(rounds=float("nan"))


def test_tied_weight_went_back_to_its_start() -> None:
    # A state_dict has a tied parameter under each name, and one was trained: each round began with the first weights.
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
    with InlineCluster().map_reduce({"x": x, "y": 2 * x}, columns, num_shards=2) as jobs:
        state, history = Rounds(LBFGS(gtol=1e-8), objective).run(jobs)
    assert history[-1]["objective"] < 1e-9
    assert list(state["weights"]) == ["a.weight"]
