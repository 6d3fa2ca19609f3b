"""Input columns fit the arguments of ``forward``, before anything is launched."""

from functools import partial

import pytest
from torch import nn

from sparkdl import InputColumn, InvalidInput, TorchClassifier, WarmStart
from sparkdl.io.weights import pack
from sparkdl.ml.column_params import check_arguments


class TwoInputs(nn.Module):
    def forward(self, a, b, scale=1.0):
        return a + b * scale


@pytest.mark.parametrize(
    ("model", "names", "assembled", "message"),
    [
        (partial(nn.Linear, 2, 3), ["a", "b"], False, "'a', 'b'; expected one .*, or assembleInputs=True"),
        (nn.Sequential(), ["a", "b"], False, r"Sequential.forward\(input\) gets the inputs 'a', 'b'"),
        (WarmStart(TwoInputs, pack(TwoInputs())), ["a"], False, "gets the inputs 'a'; expected one .*, in order.$"),
        (TwoInputs(), ["a", "b", "c", "d"], False, "expected one input column for each argument"),
        (TwoInputs, ["a", "b"], True, "gets all columns as one input; expected one .*, in order.$"),
    ],
)
def test_columns_that_forward_does_not_take_raise(model, names, assembled, message):
    estimator = TorchClassifier(model=model, inputCols=names, assembleInputs=assembled)
    with pytest.raises(InvalidInput, match=message):
        estimator.training()


@pytest.mark.parametrize(
    ("model", "names"),
    [(nn.Linear, ["a"]), (TwoInputs, ["a", "b"]), (TwoInputs(), ["a", "b", "c"]), (lambda: None, ["a", "b"])],
)
def test_columns_that_forward_takes(model, names):
    check_arguments(model, [*map(InputColumn, names)])


def test_columns_in_another_order_than_the_arguments_warn(recwarn):
    right = [(TwoInputs(), ["a", "b", "scale"]), (TwoInputs, ["price", "weight"])]
    for model, names in (*right, (TwoInputs, ["b", "a"]), (partial(TwoInputs), ["B", "x"]), (TwoInputs(), ["x", "A"])):
        TorchClassifier(model=model, inputCols=names).training()
        warned = "".join(str(recwarn.pop().message) for _ in [*recwarn])
        assert (" by place, not by name; set inputCols in the order" in warned) == ((model, names) not in right)


def test_ragged_columns_are_two_arguments():
    columns = [InputColumn("a", ragged="offsets")]
    check_arguments(TwoInputs, columns)
    with pytest.raises(InvalidInput, match=r"Linear.forward.* gets the inputs 'a'"):
        check_arguments(nn.Linear, columns)
    ragged = {"inputCols": ["a"], "columnSpecs": columns, "collate": lambda inputs, target: None}
    assembled = TorchClassifier(model=nn.Linear, assembleInputs=True, **ragged)
    with pytest.raises(InvalidInput, match="assembleInputs is True and 'a' is ragged; expected rows of one length"):
        assembled.training()
