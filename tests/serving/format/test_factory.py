"""Values of Params by import paths and arguments; forged names raise."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torchmetrics
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import StepLR

from sparkdl import AllReduce, InputColumn, InvalidInput
from sparkdl.serving.format.factory import Trust
from sparkdl.serving.format.param_values import NotDescribable, allowed_types, same
from tests.ml import nets

HERE = __name__


class Net(nn.Module):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    class Inner(nn.Linear):
        pass

    @classmethod
    def of_class(cls) -> Net:
        return cls()

    @staticmethod
    def of_none() -> Net:
        return Net()


def by_row(output, target):
    return functional.mse_loss(output, target, reduction="none")


@dataclass(frozen=True)
class Doubling:
    """An augmentation with a setting."""

    factor: float = 2.0
    only: tuple[int, ...] = (0,)

    def __call__(self, inputs, target, generator):
        return inputs, target


class Callback:
    every_rank = True

    def __init__(self, seen):
        self.seen = seen


class Odd(nn.MSELoss):
    """An attribute differs from the constructor's argument of the same name."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.scale = scale * 2


def counted():
    metric = torchmetrics.MeanMetric()
    metric.update(1.0)
    return {"mean": metric}


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("model", factory) for factory in (nets.Line, nets.digits, Net.Inner, Net.of_none)),
        ("model", partial(nets.mlp, 3, 4, outputs=1)),
        ("model", partial(Net, 1, 2.5, "three", None, True, **{"": 0, "\u00e9": "\u00e9\ud800"})),
        ("model", partial(Net, widths=[64, [32]], options={"deep": {"er": (None, (False,))}})),
        ("model", partial(partial(Net, 1, a=2), nn.ReLU, by_row, a=torch.ones(2))),
        ("loss", nn.CrossEntropyLoss(weight=torch.tensor([1.0, 0.1]), label_smoothing=0.1, ignore_index=3)),
        ("loss", nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0], dtype=torch.float64))),
        ("loss", functional.cross_entropy),
        ("optimizer", torch.optim.SGD),
        ("optimizer", partial(torch.optim.AdamW, lr=1e-2, betas=(0.8, 0.9))),
        ("scheduler", partial(StepLR, step_size=3)),
        ("metrics", {"accuracy": torchmetrics.classification.MulticlassAccuracy(3, average="macro", top_k=2)}),
        ("strategy", AllReduce()),
        ("augment", Doubling(3.0, (1, 2))),
        ("callbacks", [Doubling(), Doubling(1.0)]),
        ("columnSpecs", [InputColumn("a", "int64", (3, 4)), InputColumn("b")]),
    ],
)
def test_names_and_arguments_make_value_again(name, value):
    types = allowed_types(name)
    assert same(types.resolve(json.loads(json.dumps(types.describe(value))), Trust(modules=("tests",))), value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("model", value) for value in (nets.Line(), 5j, nets.inner(), partial(nets.inner()), Net.of_class)),
        *(("model", factory) for factory in (lambda: nets.mlp(3), partial(lambda: nets.mlp(3)), partial(Net()))),
        *(("model", partial(Net, key=value)) for value in (nn.ReLU(), object(), {1, 2}, b"bytes", 1j, CIRCLE)),
        *(("model", partial(Net, [1, [value]])) for value in ({1: "a"}, {"a": {None: 1}})),
        ("loss", Odd(3.0)),
        ("loss", nn.CrossEntropyLoss(weight=torch.ones(5000))),
        ("optimizer", partial(torch.optim.SGD, lr=torch.tensor(1.0, requires_grad=True))),
        ("optimizer", nets.Line),
        ("callbacks", [Callback([])]),
        ("collate", torch.stack),
        ("metrics", counted()),
    ],
)
def test_other_values_are_not_describable(name, value):
    with pytest.raises(NotDescribable):
        allowed_types(name).describe(value)


def test_names_of_main_and_of_other_objects_are_not_describable(monkeypatch):
    def check(factory, message):
        with pytest.raises(NotDescribable, match=message):
            allowed_types("model").describe(factory)

    factory = by_row
    with monkeypatch.context() as patch:
        patch.setattr(factory, "__module__", "__main__")
        patch.setattr(sys.modules["__main__"], "by_row", factory, raising=False)
        check(factory, r"__main__.by_row cannot be imported")
    monkeypatch.setattr(sys.modules[HERE], "by_row", Net)
    check(factory, "by_row cannot be imported")
    monkeypatch.setattr(factory, "__module__", "no.such.module")
    check(factory, "No module named 'no'")


RUN, TRUST = {"args": [{"value": "touch pwned"}], "kwargs": {}}, "unless you trust it.*"
CALL = {"partial": f"{HERE}:by_row", "args": [], "kwargs": {}}


@pytest.mark.parametrize(
    ("name", "forged", "message"),
    [
        ("optimizer", {"name": "os:system"}, "names os.system; expected nothing of Python's own modules"),
        ("optimizer", {"partial": "os:system", **RUN}, "names os.system"),
        ("optimizer", {"name": f"{HERE}:sys.settrace"}, "cannot be imported here: <module 'sys'"),
        ("optimizer", {"name": "torch.nn:Linear"}, "or a subclass of Optimizer"),
        ("optimizer", {"name": "torch.hub:load"}, "torch.hub.load.*" + TRUST + r"modules=\['torch.hub'\]"),
        ("model", {"partial": "torch:load", **RUN}, TRUST + r"modules=\['torch.serialization'\]"),
        ("model", {"partial": "pexpect:run", **RUN}, "pexpect.run" + r".*modules=\['pexpect'\]"),
        ("model", {"partial": "tornado.util:exec_in", **RUN}, r"modules=\['tornado.util'\]"),
        ("model", {"name": "sparkdl.serving.loading:load_predictor"}, TRUST),
        ("model", {"name": "sparkdl.io.files:delete"}, TRUST),
        ("model", {"name": "sparkdl.io.files:os.system"}, "<module 'os'.* is no class"),
        ("model", {"name": "torch.nn.functional:torch.hub.load"}, "<module 'torch'.* is no class"),
        ("model", {"name": "torch.nn.functional:handle_torch_function"}, r"modules=\['torch.overrides'\]"),
        ("model", {"name": "this:Zen"}, "Python's own"),
        ("model", {"partial": "torch.nn.modules.linear:Linear", "args": [CALL], "kwargs": {}}, "by_row" + ".*" + TRUST),
        ("model", {"make": "sparkdl.serving.layer_output:LayerOutput", "kwargs": {"factory": CALL}}, "by_row"),
        ("model", {"make": "sparkdl.serving.format.export:Program", "kwargs": {}}, TRUST),
        ("model", {"name": "torch.fx.graph_module:GraphModule"}, TRUST),
        ("model", {"name": "torchmetrics.text.bert:BERTScore"}, TRUST),
        ("metrics", {"make": "torchmetrics.image.fid:FrechetInceptionDistance", "kwargs": {}}, TRUST),
        ("metrics", {"list": [{"dict": {"a": CALL}}]}, "by_row"),
        ("augment", {"make": f"{HERE}:Doubling", "kwargs": {}}, TRUST),
        ("callbacks", {"make": "sparkdl.cli.doctor.probes:ChannelProbe", "kwargs": {}}, TRUST),
        ("strategy", {"make": "sparkdl.rounds.local_state:LocalState", "kwargs": {}}, TRUST),
        ("model", {"name": "tests.ml.persistence.not_imported:Net"}, TRUST + r"'tests.ml.persistence.not_imported'"),
        ("model", {"name": f"{HERE}:HERE"}, "expected a function"),
        ("model", {"name": f"{HERE}:Net.Gone"}, "cannot be imported here: .*no attribute 'Gone'"),
        ("model", {"name": ":Net"}, "names .Net"),
        ("model", {"make": "tests.ml.nets:Line", "kwargs": {}}, "is an instance of tests.ml.nets:Line"),
        ("strategy", {"make": "subprocess:Popen", "kwargs": {"args": {"value": ["true"]}}}, "names subprocess.Popen"),
        ("strategy", {"make": "tests.ml.nets:Line", "kwargs": {}}, "names tests.ml.nets.Line, which is"),
        ("loss", {"name": "tests.ml.nets:Line.__init__.__globals__"}, "names tests.ml.nets.Line.__init__"),
        ("loss", "text", "is damaged"),
    ],
)
def test_forged_names_raise(name, forged, message):
    with pytest.raises(InvalidInput, match=f"a saved value .*{message}"):
        allowed_types(name).resolve(forged)


def test_names_that_need_no_trust():
    for name, path in (
        *(("model", path) for path in ("torch.nn.modules.linear:Linear", "tests.ml.nets:Line", f"{HERE}:Net.Inner")),
        *(("optimizer", "torch.optim.sgd:SGD"), ("loss", "torch.nn.functional:cross_entropy")),
        *(("metrics", "torchmetrics.aggregation:MeanMetric"), ("strategy", AllReduce.__module__ + ":AllReduce")),
        *(("strategy", f"sparkdl.rounds.{path}") for path in ("algorithms.admm:ConsensusADMM", "prox:L1")),
    ):
        assert callable(allowed_types(name).resolve({"name": path}))


def test_trusted_modules_are_called_and_no_others():
    forged = {"partial": f"{HERE}:functional.mse_loss", "args": [], "kwargs": {}}
    types, parent = allowed_types("model"), HERE.rpartition(".")[0]
    for trust in (Trust.of(True, []), Trust.of(False, [HERE]), Trust.of(False, ("other", parent))):
        assert types.resolve(CALL, trust).func is by_row
        assert types.resolve({"make": f"{HERE}:Doubling", "kwargs": {}}, trust) == Doubling()
        with pytest.raises(InvalidInput, match="is no class"):
            types.resolve(forged, trust)
        with pytest.raises(InvalidInput, match="Python's own"):
            types.resolve({"name": "os:system"}, trust)
    with pytest.raises(InvalidInput, match=rf"modules=\['a', '{HERE}'\].*spark.sparkdl.modules to 'a,{HERE}'"):
        types.resolve(CALL, Trust.of(False, ["a"]))
    with pytest.raises(InvalidInput, match=r"cannot be imported here: No module named 'no'.* spark-submit --py-files"):
        types.resolve({"name": "no.such:thing"}, Trust.of(False, ["no"]))
    for modules in ("my_nets", ["my nets"], [""], ["my_nets.py", 1], [nets], ["os.path"], None):
        with pytest.raises(InvalidInput, match="expected a list of names of modules"):
            Trust.of(False, modules)
