"""The share-weighted sum of local mean losses is the loss of the global batch, in value and gradient."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparkdl.data.batch import Batch
from sparkdl.errors import InvalidInput, WorkerFailed
from sparkdl.training.objective.loss import Criterion, forward, target_of
from sparkdl.training.objective.objective import Objective

ROWS, CLASSES, LENGTH = 24, 5, 3
RATES = torch.tensor([0.5, 2.0, 0.0, 1.0, 3.25])


def cut(
    criterion: Criterion, output: Tensor, target: Tensor, seed: int, weights: Tensor | None = None
) -> list[tuple[Tensor, Batch]]:
    """Local outputs and batches of the rows on up to six workers, some of them without rows."""
    draw = random.Random(seed)
    cuts = sorted(draw.randint(0, len(target)) for _ in range(draw.randint(0, 5)))
    terms = criterion.denominators(target)
    if weights is not None:
        terms = weights.double() * (1 if terms is None else terms)
    total = float(len(target) if terms is None else terms.sum())
    pieces = []
    for first, last in zip([0, *cuts], [*cuts, len(target)], strict=True):
        part_terms = None if terms is None else terms[first:last]
        weight = float(last - first) if part_terms is None else float(part_terms.sum())
        own = None if weights is None else weights[first:last]
        batch = Batch((), target[first:last], own, part_terms, last - first, weight, weight / total)
        pieces.append((output[first:last], batch))
    return pieces


def assert_exact(criterion: Criterion, output: Tensor, target: Tensor, expected: Tensor, **given: Any) -> None:
    """Value and gradient agree to 1e-12 for any split of the batch over workers."""
    (gradient,) = torch.autograd.grad(expected, output)
    for seed in range(6):
        pieces = cut(criterion, output, target, seed, **given)
        # The model does not see a batch of weight 0.
        losses = [criterion(part, batch) * batch.weight_fraction for part, batch in pieces if batch.weight]
        found = torch.stack(losses).sum()
        assert found.item() == pytest.approx(expected.item(), rel=1e-12, abs=1e-12)
        (own,) = torch.autograd.grad(found, output)
        assert torch.allclose(own, gradient, rtol=1e-12, atol=1e-14)


def scores(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()


def labels(*shape: int, ignored: int | None = None) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    found = torch.randint(CLASSES, shape, generator=generator)
    return found if ignored is None else found.masked_fill(torch.rand(shape, generator=generator) < 0.3, ignored)


def ready(loss: Any) -> Criterion:
    return Objective(nn.Linear(1, 1), loss, precision="fp64").criterion()


# ---- class losses: denominators of their own -------------------------------------------------------------------------

CLASS_LOSSES = [
    {},
    {"weight": RATES},
    {"ignore_index": -100},
    {"weight": RATES, "ignore_index": -1},
    {"label_smoothing": 0.2},
    {"label_smoothing": 0.1, "weight": RATES + 0.5},
    {"label_smoothing": 0.1, "weight": RATES + 0.5, "ignore_index": 1},
    {"reduction": "none", "weight": RATES},
]


def named(settings: dict[str, Any]) -> str:
    return "-".join(f"{name}={value if isinstance(value, (int, str)) else 'some'}" for name, value in settings.items())


@pytest.mark.parametrize("shape", [(), (LENGTH,), (LENGTH, 2)], ids=str)
@pytest.mark.parametrize("settings", CLASS_LOSSES, ids=named)
def test_cross_entropy(settings: dict[str, Any], shape: tuple[int, ...]) -> None:
    output = scores(ROWS, CLASSES, *shape)
    target = labels(ROWS, *shape, ignored=settings.get("ignore_index"))
    for loss in (nn.CrossEntropyLoss, nn.NLLLoss):
        if loss is nn.CrossEntropyLoss or "label_smoothing" not in settings:
            whole = loss(**settings | {"reduction": "mean"}).double()
            assert_exact(ready(loss(**settings)), output, target, whole(output, target))


@pytest.mark.parametrize("settings", [{}, {"weight": RATES}, {"label_smoothing": 0.3}], ids=named)
def test_cross_entropy_with_probabilities(settings: dict[str, Any]) -> None:
    output, target = scores(ROWS, CLASSES), scores(ROWS, CLASSES).detach().softmax(1)
    whole = nn.CrossEntropyLoss(**settings).double()
    assert ready(nn.CrossEntropyLoss(**settings)).denominators(target) is None
    assert_exact(ready(nn.CrossEntropyLoss(**settings)), output, target, whole(output, target))


@pytest.mark.parametrize("settings", [{}, {"weight": RATES}, {"weight": RATES, "ignore_index": 1}], ids=named)
def test_row_weights_multiply_class_weights(settings: dict[str, Any]) -> None:
    output, target = scores(ROWS, CLASSES), labels(ROWS)
    weights = torch.rand(ROWS, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    rates = settings.get("weight", torch.ones(CLASSES)).double()[target] * (target != settings.get("ignore_index"))
    each = nn.CrossEntropyLoss(**settings, reduction="none").double()(output, target)
    expected = (weights * each).sum() / (weights * rates).sum()
    assert_exact(ready(nn.CrossEntropyLoss(**settings)), output, target, expected, weights=weights)


@pytest.mark.parametrize(
    ("loss", "target", "expected"),
    [
        *(
            (nn.CrossEntropyLoss(RATES, ignore_index=2), torch.tensor([0, 4, 2, 1], dtype=dtype), [0.5, 3.25, 0.0, 2.0])
            for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
        ),
        (nn.CrossEntropyLoss(RATES, ignore_index=-1), torch.tensor([[0, 1], [-1, 4], [-1, -1]]), [1.25, 1.625, 0.0]),
        (nn.CrossEntropyLoss(), labels(ROWS), None),
        # torch compares uint8 labels with an ignore_index of -100 in uint8, where that is 156.
        (nn.CrossEntropyLoss(), torch.tensor([155, 156, 157], dtype=torch.uint8), None),
        (nn.CrossEntropyLoss(torch.ones(CLASSES)), labels(ROWS), None),
        (nn.MSELoss(), labels(ROWS), None),
        (F.cross_entropy, labels(ROWS), None),
        (nn.NLLLoss(), labels(0), None),
    ],
)
def test_denominators(loss: Any, target: Tensor, expected: list[float] | None) -> None:
    found = ready(loss).denominators(target)
    assert (None if found is None else found.tolist()) == expected
    assert found is None or found.dtype == torch.float64


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.NLLLoss(), nn.MultiMarginLoss()])
def test_targets_that_are_no_class_indices_raise(loss: nn.Module) -> None:
    def raises(shape: tuple[int, ...], target: Tensor, message: str) -> None:
        with pytest.raises(InvalidInput, match=message):
            ready(loss)(scores(*shape), Batch((), target, None, None, 4, 4.0, 1.0))

    indices, one_hot = torch.tensor([0, 1, 2, 0]), F.one_hot(torch.tensor([0, 1, 1, 0]))
    for shape, target in (((4, 1), indices), ((4,), indices), ((4, 2), one_hot), ((4, 3), indices.double())):
        raises(shape, target, r"class indices .* F.array_position\(.* column per class.*BCEWithLogitsLoss")
    raises((4, 2), indices, r"arget.* out of .* Class indices are from 0 to the number of scores - 1")
    with pytest.raises(InvalidInput, match="a label is 7, and the loss has 5 class weights"):
        ready(nn.CrossEntropyLoss(RATES)).denominators(torch.tensor([0, 7]))


POS_WEIGHT = partial(nn.BCEWithLogitsLoss, pos_weight=torch.tensor([2.0]).double())
ELEMENTWISE = [nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCEWithLogitsLoss, POS_WEIGHT]


@pytest.mark.parametrize("shape", [(), (1,), (3, 2)], ids=str)
@pytest.mark.parametrize("loss", ELEMENTWISE)
def test_elementwise_losses(loss: Callable[..., nn.Module], shape: tuple[int, ...]) -> None:
    output, target = scores(ROWS, *shape), torch.rand(ROWS, *shape, dtype=torch.float64)
    assert_exact(ready(loss()), output, target, loss()(output, target))
    weights = torch.rand(ROWS, dtype=torch.float64)
    each = loss(reduction="none")(output, target).reshape(ROWS, -1).mean(1)
    assert_exact(ready(loss()), output, target, (weights * each).sum() / weights.sum(), weights=weights)


# ---- functions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [F.huber_loss, lambda output, target: F.huber_loss(output, target, reduction="none")])
@pytest.mark.parametrize("shape", [(), (4, 2)], ids=str)
def test_functions(loss: Callable[..., Tensor], shape: tuple[int, ...]) -> None:
    output, target = scores(ROWS, *shape), torch.randn(ROWS, *shape, dtype=torch.float64)
    assert_exact(ready(loss), output, target, F.huber_loss(output, target))


def test_loss_of_wrong_shape_raises() -> None:
    def mean(output: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(output, target)

    (output, batch), *_ = cut(ready(mean), scores(ROWS), scores(ROWS).detach(), 0, torch.ones(ROWS).double())
    with pytest.raises(InvalidInput, match=r'returned a scalar, which cannot be weighted by row; .* reduction="none"'):
        ready(mean)(output, batch)
    with pytest.raises(InvalidInput, match=r"returned \[1\] float64 for 4 rows; .* The output was \[4\] float64"):
        ready(lambda output, target: torch.zeros(1).double())(
            scores(4), Batch((), torch.zeros(4), None, None, 4, 4.0, 1.0)
        )


def test_without_target_first_input_is_target() -> None:
    images = torch.randn(4, 3).double()
    batch = Batch((images, torch.zeros(4)), None, None, None, 4, 4.0, 1.0)
    assert target_of(batch) is images
    assert ready(nn.MSELoss())(images + 2, batch).item() == pytest.approx(4)


def test_other_outputs_are_unchanged() -> None:
    batch = Batch((), torch.zeros(3, dtype=torch.int64), None, None, 3, 3.0, 1.0)
    pair = torch.ones(3), torch.ones(3)
    assert ready(lambda output, target: (output[0] - target).abs() + output[1])(pair, batch).item() == 2


# ---- the objective ---------------------------------------------------------------------------------------------------


def test_model_and_loss_are_copied() -> None:
    start, loss = nn.Linear(2, 1), nn.CrossEntropyLoss(RATES)
    built = Objective(start, loss).build()
    assert torch.equal(built.weight, start.weight)
    assert built.weight.data_ptr() != start.weight.data_ptr()
    first, second = (Objective(partial(nn.Linear, 2, 1), loss).build() for _ in range(2))
    assert not torch.equal(first.weight, second.weight)
    ready(loss)(scores(3, CLASSES), Batch((), labels(3), torch.ones(3), torch.ones(3).double(), 3, 3.0, 1.0))
    assert (loss.reduction, loss.weight.dtype) == ("mean", torch.float32)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.float32), ("fp64", torch.float64)]
)
def test_weights_and_loss_have_dtype_of_precision(precision: str, dtype: torch.dtype) -> None:
    objective = Objective(nn.BatchNorm1d(2).double(), nn.CrossEntropyLoss(RATES), precision=precision)
    built = objective.build()
    assert objective.dtype == built.weight.dtype == built.running_mean.dtype == dtype
    assert built.num_batches_tracked.dtype == torch.int64
    assert objective.criterion()._mean.weight.dtype == dtype  # type: ignore[union-attr]
    assert RATES.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes_of_weights_and_inputs_are_explained(dtype: torch.dtype) -> None:
    with pytest.warns(RuntimeWarning, match=f"weights of '{dtype}' in Linear become torch.float32, as precision"):
        module = Objective(partial(nn.Linear, 2, 1, dtype=dtype), nn.MSELoss()).build(warn=True)
    for layer, rows in (
        (module, torch.ones(3, 2, dtype=dtype)),
        (module, torch.ones(3, 2).long()),
        (nn.LSTM(2, 2), torch.ones(3, 2, dtype=dtype)),
        (nn.Embedding(4, 2), torch.ones(3, dtype=torch.int8)),
    ):
        with pytest.raises(WorkerFailed, match=r"An index is int64. Weights are float32.* InputColumn\(name, dtype\)"):
            forward(layer, [rows])
    for wrong in (lambda rows: rows + None, lambda rows: len(None)):
        layer.forward = wrong  # type: ignore[method-assign]
        with pytest.raises(WorkerFailed, match=r"raised TypeError: .*type.* Its inputs were \[3\] int8\.$"):
            forward(layer, [rows])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": {"accuracy": "accuracy"}}, "metrics has 'accuracy' as 'accuracy'; expected a metric, such as"),
        ({"model": nn.ReLU}, "ReLU has no trainable parameters; nothing can be trained"),
        ({"model": nn.Linear(2, 1).requires_grad_(False)}, "has no trainable parameters"),
        ({"model": lambda: None}, "the factory returned NoneType; expected a torch.nn.Module"),
        ({"model": lambda: nn.Linear}, "the factory returned type; expected a torch.nn.Module"),
        ({"loss": nn.KLDivLoss(reduction="sum")}, "has reduction='sum'; expected 'mean'"),
        ({"loss": "mse"}, r"loss is .*; expected a function loss\(output, target\), or an nn loss"),
        ({"loss": nn.MSELoss}, r"loss is .*; expected a function loss\(output, target\), or an nn loss"),
        ({"optimizer": torch.optim.LBFGS}, r"optimizer is LBFGS, .* closure.* strategy=LBFGS\(\)"),
        ({"precision": "fp8"}, "precision is 'fp8'; expected one of fp32, bf16, fp16, fp64"),
    ],
)
def test_invalid_objective_raises(options: dict[str, Any], message: str) -> None:
    options = {"model": partial(nn.Linear, 2, 1), "loss": nn.MSELoss()} | options
    with pytest.raises(InvalidInput, match=message):
        (made := Objective(**options)).open_optimizer(made.build().named_parameters())
