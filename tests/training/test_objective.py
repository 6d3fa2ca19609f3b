"""The share-weighted sum of local mean losses is the loss of the whole batch on one machine, in value and gradient."""

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
from sparkdl.errors import InvalidInput
from sparkdl.training.loss import Criterion, target_of
from sparkdl.training.objective import Objective

ROWS, CLASSES, LENGTH = 24, 5, 3
RATES = torch.tensor([0.5, 2.0, 0.0, 1.0, 3.25])


def cut(
    criterion: Criterion, output: Tensor, target: Tensor, seed: int, weights: Tensor | None = None
) -> list[tuple[Tensor, Batch]]:
    """The rows dealt to up to six members, some of them with none, as the feed does it: local outputs and batches."""
    draw = random.Random(seed)
    cuts = sorted(draw.randint(0, len(target)) for _ in range(draw.randint(0, 5)))
    masses = criterion.denominators(target)
    if weights is not None:
        masses = weights.double() * (1 if masses is None else masses)
    total = float(len(target) if masses is None else masses.sum())
    pieces = []
    for first, last in zip([0, *cuts], [*cuts, len(target)], strict=True):
        mass = None if masses is None else masses[first:last]
        weight = float(last - first) if mass is None else float(mass.sum())
        own = None if weights is None else weights[first:last]
        batch = Batch((), target[first:last], own, mass, last - first, weight, weight / total)
        pieces.append((output[first:last], batch))
    return pieces


def gang_loss(criterion: Criterion, pieces: list[tuple[Tensor, Batch]]) -> Tensor:
    """What all-reduce makes of the members' losses; a batch that weighs nothing is not seen by the model."""
    losses = [criterion(output, batch) * batch.weight_fraction for output, batch in pieces if batch.weight]
    return torch.stack(losses).sum()


def assert_exact(criterion: Criterion, output: Tensor, target: Tensor, expected: Tensor, **given: Any) -> None:
    """Value and gradient agree to 1e-12, however the batch is cut over members and into accumulated pieces."""
    (gradient,) = torch.autograd.grad(expected, output)
    for seed in range(6):
        pieces = cut(criterion, output, target, seed, **given)
        found = gang_loss(criterion, pieces)
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
    {"ignore_index": 3},
    {"weight": RATES, "ignore_index": -1},
    {"label_smoothing": 0.2},
    {"label_smoothing": 0.2, "ignore_index": -100},
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
    whole = nn.CrossEntropyLoss(**settings | {"reduction": "mean"}).double()
    assert_exact(ready(nn.CrossEntropyLoss(**settings)), output, target, whole(output, target))


@pytest.mark.parametrize("settings", [s for s in CLASS_LOSSES if "label_smoothing" not in s], ids=named)
@pytest.mark.parametrize("shape", [(), (LENGTH,)], ids=str)
def test_nll(settings: dict[str, Any], shape: tuple[int, ...]) -> None:
    output = scores(ROWS, CLASSES, *shape).log_softmax(1)
    target = labels(ROWS, *shape, ignored=settings.get("ignore_index"))
    whole = nn.NLLLoss(**settings | {"reduction": "mean"}).double()
    assert_exact(ready(nn.NLLLoss(**settings)), output, target, whole(output, target))


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


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_masses_of_labels_of_any_integer_dtype(dtype: torch.dtype) -> None:
    criterion = ready(nn.CrossEntropyLoss(RATES, ignore_index=2))
    found = criterion.denominators(torch.tensor([0, 4, 2, 1], dtype=dtype))
    assert found is not None
    assert found.dtype == torch.float64
    assert found.tolist() == [0.5, 3.25, 0.0, 2.0]


def test_masses_of_rows_with_several_labels_are_means() -> None:
    found = ready(nn.CrossEntropyLoss(RATES, ignore_index=-1)).denominators(torch.tensor([[0, 1], [-1, 4], [-1, -1]]))
    assert found is not None
    assert found.tolist() == [1.25, 1.625, 0.0]


def test_where_each_row_adds_1_there_are_no_masses() -> None:
    for loss in (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(torch.ones(CLASSES)), nn.MSELoss(), F.cross_entropy):
        assert ready(loss).denominators(labels(ROWS)) is None
    assert ready(nn.NLLLoss()).denominators(labels(0)) is None


# ---- elementwise losses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (4,), (3, 2)], ids=str)
@pytest.mark.parametrize("loss", [nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCEWithLogitsLoss])
def test_elementwise_losses(loss: type[nn.Module], shape: tuple[int, ...]) -> None:
    output, target = scores(ROWS, *shape), torch.rand(ROWS, *shape, dtype=torch.float64)
    assert_exact(ready(loss()), output, target, loss()(output, target))
    weights = torch.rand(ROWS, dtype=torch.float64)
    each = loss(reduction="none")(output, target).reshape(ROWS, -1).mean(1)
    assert_exact(ready(loss()), output, target, (weights * each).sum() / weights.sum(), weights=weights)


def test_bce_with_pos_weight() -> None:
    rates = torch.tensor([0.5, 4.0, 1.0], dtype=torch.float64)
    output, target = scores(ROWS, 3), (torch.rand(ROWS, 3) < 0.4).double()
    whole = nn.BCEWithLogitsLoss(pos_weight=rates)
    assert_exact(ready(nn.BCEWithLogitsLoss(pos_weight=rates)), output, target, whole(output, target))


# ---- functions -------------------------------------------------------------------------------------------------------


def each_huber(output: Tensor, target: Tensor) -> Tensor:
    return F.huber_loss(output, target, reduction="none")


@pytest.mark.parametrize("loss", [F.huber_loss, each_huber, partial(F.huber_loss, delta=1.0)])
@pytest.mark.parametrize("shape", [(), (4, 2)], ids=str)
def test_functions(loss: Callable[..., Tensor], shape: tuple[int, ...]) -> None:
    output, target = scores(ROWS, *shape), torch.randn(ROWS, *shape, dtype=torch.float64)
    assert_exact(ready(loss), output, target, F.huber_loss(output, target))


def test_a_scalar_cannot_be_weighted_by_row() -> None:
    output, target, weights = scores(ROWS), torch.randn(ROWS, dtype=torch.float64), torch.ones(ROWS)
    (piece, batch), *_ = cut(ready(F.mse_loss), output, target, 0, weights)
    with pytest.raises(InvalidInput, match=r'returned a scalar, which cannot be weighted by row; .* reduction="none"'):
        ready(F.mse_loss)(piece, batch)


def test_a_loss_for_each_row_is_expected() -> None:
    (piece, batch), *_ = cut(ready(F.mse_loss), scores(4), torch.randn(4).double(), 1)
    with pytest.raises(InvalidInput, match=r"loss\(output, target\) returned shape \(1,\) for a batch of 4 rows"):
        ready(lambda output, target: torch.zeros(1))(scores(4), Batch((), torch.zeros(4), None, None, 4, 4.0, 1.0))
    assert ready(each_huber)(piece, batch).dim() == 0


def test_without_a_target_the_first_input_is_the_target() -> None:
    images = torch.randn(4, 3).double()
    batch = Batch((images, torch.zeros(4)), None, None, None, 4, 4.0, 1.0)
    assert target_of(batch) is images
    assert ready(nn.MSELoss())(images + 2, batch).item() == pytest.approx(4)


# ---- [B, 1] beside [B] -----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error::UserWarning")  # torch's own about broadcasting
@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_a_column_of_one_is_no_matrix(rows: int, dtype: torch.dtype) -> None:
    flat, wanted = scores(rows), torch.arange(rows, dtype=dtype)
    expected = F.mse_loss(flat, wanted.double()).item()
    for output, target in (
        (flat, wanted),
        (flat[:, None], wanted),
        (flat, wanted[:, None]),
        (flat[:, None], wanted[:, None]),
    ):
        batch = Batch((), target, None, None, rows, float(rows), 1.0)
        assert ready(nn.MSELoss())(output, batch).item() == pytest.approx(expected, rel=1e-12)


def test_scores_of_one_class_are_left_alone() -> None:
    batch = Batch((), torch.zeros(3, dtype=torch.int64), None, None, 3, 3.0, 1.0)
    for loss in (nn.CrossEntropyLoss(), F.cross_entropy):
        assert ready(loss)(scores(3, 1), batch).item() == 0


def test_outputs_that_are_no_tensors_go_to_the_loss() -> None:
    def loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        return (output[0] - target).abs() + output[1]

    batch = Batch((), torch.zeros(2), None, None, 2, 2.0, 1.0)
    assert ready(loss)((torch.ones(2), torch.ones(2)), batch).item() == 2


# ---- the objective ---------------------------------------------------------------------------------------------------


def linear() -> nn.Module:
    return nn.Linear(2, 1)


def test_a_factory_makes_a_new_module_each_time() -> None:
    objective = Objective(linear, nn.MSELoss())
    first, second = objective.build(), objective.build()
    assert first is not second
    assert not torch.equal(first.weight, second.weight)


def test_an_instance_is_copied_with_its_weights() -> None:
    start = nn.Linear(2, 1)
    built = Objective(start, nn.MSELoss()).build()
    assert built is not start
    assert torch.equal(built.weight, start.weight)
    assert built.weight.data_ptr() != start.weight.data_ptr()


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.float32), ("fp64", torch.float64)]
)
def test_weights_and_losses_have_the_dtype_of_the_precision(precision: str, dtype: torch.dtype) -> None:
    objective = Objective(nn.BatchNorm1d(2).double(), nn.CrossEntropyLoss(RATES), precision=precision)
    built = objective.build()
    assert objective.dtype == built.weight.dtype == built.running_mean.dtype == dtype
    assert built.num_batches_tracked.dtype == torch.int64
    assert objective.criterion()._mean.weight.dtype == dtype  # type: ignore[union-attr]
    assert RATES.dtype == torch.float32


def frozen() -> nn.Module:
    return nn.Linear(2, 1).requires_grad_(False)


@pytest.mark.parametrize("model", [nn.ReLU, nn.ReLU(), frozen, nn.Sequential()], ids=str)
def test_a_model_without_parameters_is_refused(model: Any) -> None:
    with pytest.raises(InvalidInput, match="has no trainable parameters; nothing can be trained"):
        Objective(model, nn.MSELoss()).build()


@pytest.mark.parametrize("made", [None, 3, nn.Linear, {"weight": 1}], ids=str)
def test_a_factory_that_makes_no_module_is_refused(made: Any) -> None:
    with pytest.raises(InvalidInput, match=rf"model\(\) returned {type(made).__name__}; expected a torch.nn.Module"):
        Objective(lambda: made, nn.MSELoss()).build()


@pytest.mark.parametrize("loss", [nn.MSELoss(reduction="sum"), nn.KLDivLoss(reduction="batchmean")], ids=str)
def test_another_reduction_is_refused(loss: nn.Module) -> None:
    with pytest.raises(InvalidInput, match=f"has reduction='{loss.reduction}'; expected 'mean'"):
        Objective(linear, loss)


def test_an_optimizer_that_evaluates_the_loss_itself_is_refused() -> None:
    objective = Objective(linear, nn.MSELoss(), torch.optim.LBFGS)
    with pytest.raises(InvalidInput, match=r"optimizer is LBFGS, whose step\(\) takes a closure.* strategy=LBFGS\(\)"):
        objective.open_optimizer(objective.build().parameters())


@pytest.mark.parametrize("loss", ["mse", None, 3, nn.MSELoss], ids=str)
def test_what_is_no_loss_is_refused(loss: Any) -> None:
    with pytest.raises(InvalidInput, match=r"loss is .*; expected a function loss\(output, target\), or an nn loss"):
        Objective(linear, loss)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("precision", "fp16", "precision is 'fp16'; expected one of fp32, bf16, fp64"),
        ("max_grad_norm", 0, "maxGradNorm is 0; expected a number above 0, or None"),
        ("max_grad_norm", -1.0, "maxGradNorm is -1.0"),
        ("max_grad_norm", float("nan"), "maxGradNorm is nan"),
    ],
)
def test_other_settings_are_refused(setting: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Objective(linear, nn.MSELoss(), **{setting: value})


def test_the_loss_of_the_user_is_not_changed() -> None:
    loss = nn.CrossEntropyLoss(RATES)
    ready(loss)(scores(3, CLASSES), Batch((), labels(3), torch.ones(3), torch.ones(3).double(), 3, 3.0, 1.0))
    assert loss.reduction == "mean"
    assert loss.weight.dtype == torch.float32
