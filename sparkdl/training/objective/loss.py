"""The forward pass and the loss of a step, as the weighted mean over the rows of the global batch.

With ``l_i`` the loss of row ``i``, averaged over its trailing dimensions, the loss over all workers is

    L(w) = sum_i a_i * l_i(w) / sum_i a_i * m_i

``a_i`` is the row's weight (``weightCol``, else 1). ``m_i`` is its term in the loss's own denominator: 1, or
the class weight of its label, 0 for ``ignore_index``. ``L`` equals ``torch.nn.CrossEntropyLoss(weight, ignore_index)``
of the whole batch on one machine.

A loss gets the model's output and the target unchanged. Losses of torch that compare element by element, as modules or
as functions, get equal shapes: ``[B, 1]`` beside ``[B]`` becomes ``[B]``.

One case differs: with ``label_smoothing`` and a class of weight 0, rows have a loss but ``m_i = 0``. If a worker has
only such rows in a step, their loss is omitted.
"""

from __future__ import annotations

import copy
import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from sparkdl.data.batch import Batch, Input, arguments
from sparkdl.errors import InvalidInput, WorkerFailed

LossFunction = Callable[[Any, Tensor], Tensor]

_DTYPES = (
    " An index is int64. Weights are float32, or float64 with precision='fp64', whatever the model's own dtype is; "
    "precision='bf16' needs no casts. For another dtype of a column, set InputColumn(name, dtype) in columnSpecs."
)

_DTYPE_ERRORS = (
    r"dtype|[Ss]calar type|[Ii]nput type|Type promot|should be the same|index tensor|not implemented for|as indices"
)

_ELEMENTWISE: dict[Any, type[nn.Module]] = {
    functional.binary_cross_entropy: nn.BCELoss,
    functional.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
    functional.hinge_embedding_loss: nn.HingeEmbeddingLoss,
    functional.huber_loss: nn.HuberLoss,
    functional.kl_div: nn.KLDivLoss,
    functional.l1_loss: nn.L1Loss,
    functional.mse_loss: nn.MSELoss,
    functional.poisson_nll_loss: nn.PoissonNLLLoss,
    functional.smooth_l1_loss: nn.SmoothL1Loss,
    functional.soft_margin_loss: nn.SoftMarginLoss,
}
# Their targets have other shapes than their outputs.
_BY_CLASS: dict[Any, type[nn.Module]] = {
    functional.cross_entropy: nn.CrossEntropyLoss,
    functional.multi_margin_loss: nn.MultiMarginLoss,
    functional.multilabel_margin_loss: nn.MultiLabelMarginLoss,
    functional.nll_loss: nn.NLLLoss,
}
_MULTILABEL: dict[Any, type[nn.Module]] = {functional.multilabel_soft_margin_loss: nn.MultiLabelSoftMarginLoss}
_MODULES = _ELEMENTWISE | _MULTILABEL | _BY_CLASS


def as_module(loss: Any) -> Any:
    """The loss module of a function of ``torch.nn.functional``, or of a partial with its settings; else the loss.

    Raises InvalidInput for settings of wrong types.
    """
    function, settings = loss, dict[str, Any]()
    if isinstance(loss, partial) and not loss.args:
        function, settings = loss.func, loss.keywords
    module = next((module for known, module in _MODULES.items() if known is function), None)
    if module is None or not settings.keys() <= inspect.signature(module).parameters.keys():
        return loss
    try:
        return module(**settings)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"loss is {loss!r}, whose settings {module.__name__} does not take: {error}.") from error


def forward(module: nn.Module, columns: Iterable[Input]) -> Any:
    """The model's output. If the model raises, WorkerFailed reports the shapes of its inputs."""
    inputs = arguments(columns)
    try:
        return module(*inputs)
    except InvalidInput:
        raise
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        if _compiler_failed(module, error):
            return forward(module, columns)
        if "Expected more than 1 value per channel" in str(error):
            raise InvalidInput(
                f"batch normalisation in {type(module).__name__} got one row on this worker, which has no variance. If "
                "only an epoch's last step has so few rows, set dropLast=True. Otherwise raise batchSize, in rounds "
                "the algorithm's, or lower numWorkers or microBatches. nn.GroupNorm, and on GPUs syncBatchNorm=True, "
                "take one row."
            ) from error
        advice = _DTYPES * bool(re.search(_DTYPE_ERRORS, str(error)))
        raise WorkerFailed(
            f"forward() of {type(module).__name__} raised {type(error).__name__}: {str(error).rstrip('.')}. "
            f"Its inputs were {', '.join(map(shapes, inputs))}.{advice}"
        ) from error


@contextmanager
def kept_buffers(module: nn.Module) -> Iterator[None]:
    """Restore the module's buffers after the block, such as a count of calls; one that a first call resizes stays."""
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    yield
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            if name in before and before[name].shape == buffer.shape:
                buffer.copy_(before[name])


def _compiler_failed(module: nn.Module, error: Exception) -> bool:
    if module._compiled_call_impl is None or not isinstance(error, torch._dynamo.exc.TorchDynamoException):
        return False
    reason = " ".join(str(error).strip().splitlines()[:2])
    warnings.warn(f"compile is ignored: {type(error).__name__}: {reason}", stacklevel=3)
    module._compiled_call_impl = None
    return True


def trained(loss: Tensor) -> Tensor:
    """The loss; raises InvalidInput if it depends on no trainable parameter."""
    if loss.grad_fn is None:
        raise InvalidInput("the loss does not depend on any trainable parameter; nothing can be trained.")
    return loss


class Criterion:
    """Local mean losses whose sum, weighted by each worker's share, is the global mean."""

    def __init__(self, loss: LossFunction | nn.Module) -> None:
        loss = as_module(loss)
        self._elementwise = _is_one_of(loss, _ELEMENTWISE)
        by_class = _is_one_of(loss, _BY_CLASS)
        self._of_classes = by_class and not isinstance(loss, nn.MultiLabelMarginLoss)
        self._unchecked = not (self._elementwise or by_class)  # until the first batch
        self._sums = getattr(loss, "reduction", None) == "batchmean"  # the trailing dimensions of a row
        self._mean = self._each = loss
        if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
            self._each = copy.deepcopy(loss)
            self._each.reduction = "none"  # type: ignore[assignment]

    def __call__(self, output: Any, batch: Batch) -> Tensor:
        """The local mean loss, a scalar: the weighted losses of the batch's rows over ``batch.weight``."""
        output, target = self.arguments(output, batch)
        unweighted = batch.denominators is None and batch.weights is None
        with _RefuseBroadcasts(output, target) if self._unchecked else nullcontext():
            loss = _called(self._mean if unweighted else self._each, output, target)
        self._unchecked &= batch.rows == 1
        if unweighted and loss.dim() == 0:
            return loss
        if loss.dim() == 0:
            raise InvalidInput(
                "loss(output, target) returned a scalar, which cannot be weighted by row; expected one loss for "
                'each row, for example with reduction="none".'
            )
        losses = loss
        if loss.dim() > 1:
            losses = loss.flatten(1).sum(1) if self._sums else loss.flatten(1).mean(1)
        if unweighted:
            return losses.mean()
        weighted = losses if batch.weights is None else losses * batch.weights
        return weighted.sum() / batch.weight

    def arguments(self, output: Any, batch: Batch) -> tuple[Any, Tensor]:
        """The output and the target, as the loss and the metrics get them.

        Raises:
            InvalidInput: a loss of torch would broadcast the output and the target, or needs another target.
        """
        target = target_of(batch)
        if self._of_classes and isinstance(output, Tensor):
            self._check_classes(output, target)
        if not self._elementwise or not isinstance(output, Tensor) or output.shape == target.shape:
            return output, target
        if output.shape == (*target.shape, 1):
            return output.squeeze(-1), target
        if target.shape == (*output.shape, 1):
            return output, target.squeeze(-1)
        raise InvalidInput(
            f"{type(self._mean).__name__} compares the output with the target element by element; expected equal "
            f"shapes. The output was {shapes(output)}, the target {shapes(target)}."
        )

    def _check_classes(self, output: Tensor, target: Tensor) -> None:
        soft = target.is_floating_point() and isinstance(self._mean, nn.CrossEntropyLoss)
        shape = output.shape if soft else output.shape[:1] + output.shape[2:]
        if output.shape[1:2] in ((), (1,)) or target.shape != shape or target.is_floating_point() != soft:
            raise InvalidInput(
                f"{type(self._mean).__name__} takes scores [B, classes, ...] and class indices [B, ...] of integers. "
                f"The output was {shapes(output)}, the target {shapes(target)}. The index of a one-hot label is "
                "F.array_position(vector_to_array(label), 1.0) - 1; probabilities need a column per class. With one "
                "score for two classes, set loss=nn.BCEWithLogitsLoss()."
            )

    def denominators(self, target: Tensor) -> Tensor | None:
        """Each row's denominator ``m_i``, float64 ``[B]``; None if all are 1.

        Only class-index losses have others: the class weights, and 0 for ignored labels.
        """
        if not isinstance(self._mean, (nn.CrossEntropyLoss, nn.NLLLoss)) or target.is_floating_point():
            return None
        target = target.long()  # among uint8 labels an ignore_index of -100 would wrap to 156
        valid = target != self._mean.ignore_index
        if self._mean.weight is None:
            denominators = valid.to(torch.float64)
        else:
            weights, labels = self._mean.weight.to("cpu", torch.float64), torch.where(valid, target, 0)
            if bool((labels >= len(weights)).any()):
                raise InvalidInput(
                    f"a label is {int(labels.max())}, and the loss has {len(weights)} class weights; expected labels "
                    f"from 0 to {len(weights) - 1}."
                )
            denominators = weights[labels] * valid
        denominators = denominators.flatten(1).mean(1) if denominators.dim() > 1 else denominators
        return None if bool((denominators == 1).all()) else denominators


def target_of(batch: Batch) -> Tensor:
    """The batch's target; without one, the first argument of ``forward()``, as for an autoencoder."""
    return arguments(batch.inputs[:1])[0] if batch.target is None else batch.target


def check_loss(loss: object) -> None:
    """Raise InvalidInput if the loss sums over rows, has trainable parameters, or is no function and no module."""
    loss = as_module(loss)
    reduction = getattr(loss, "reduction", None)
    allowed = (None, "mean", "none", *(("batchmean",) if isinstance(loss, nn.KLDivLoss) else ()))
    if isinstance(loss, nn.Module) and reduction not in allowed:
        raise InvalidInput(
            f"{type(loss).__name__} has reduction={reduction!r}; expected 'mean': losses are averaged over the "
            "global batch, so that the batch size does not change the learning rate."
        )
    numbers: dict[str, Any] = {}
    if isinstance(loss, nn.Module) and type(loss).__module__.startswith("torch.nn."):
        numbers = {**vars(loss), **dict(loss.named_buffers())}
    for name, value in numbers.items():
        if isinstance(value, float | Tensor) and not torch.as_tensor(value).isfinite().all():
            raise InvalidInput(f"{type(loss).__name__} has {name}={value}; expected finite numbers.")
    parameters = loss.named_parameters() if isinstance(loss, nn.Module) else ()
    if trainable := [name for name, value in parameters if value.requires_grad]:
        raise InvalidInput(
            f"{type(loss).__name__} has the trainable parameters {', '.join(trainable)}, which no optimizer gets; move "
            "them into the model, or call requires_grad_(False)."
        )
    if not callable(loss) or isinstance(loss, type):
        raise InvalidInput(f"loss is {loss!r}; expected a function loss(output, target), or an nn loss module.")


def shapes(value: Any) -> str:
    """Format shapes and dtypes of a tensor, or of nested tensors in a list, tuple or dict."""
    if isinstance(value, Tensor):
        return f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name!r}: {shapes(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(shapes, value))})"
    return type(value).__name__


def _called(loss: LossFunction | nn.Module, output: Any, target: Tensor) -> Tensor:
    try:
        value = loss(output, target)
    except InvalidInput:
        raise
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        beyond = re.search(r"Target -?\d+ is out of bounds|target out of range", str(error))  # again in each attempt
        raise (InvalidInput if beyond else WorkerFailed)(
            f"the loss raised {type(error).__name__}: {str(error).rstrip('.')}. The output was {shapes(output)}, the "
            f"target {shapes(target)}.{' Class indices are from 0 to the number of scores - 1.' * bool(beyond)}"
        ) from error
    if not isinstance(value, Tensor) or (value.dim() and len(value) != len(target)):
        raise InvalidInput(
            f"loss(output, target) returned {shapes(value)} for {len(target)} rows; expected a torch.Tensor of "
            f"losses [{len(target)}, ...], or of their mean. The output was {shapes(output)}, the target "
            f"{shapes(target)}."
        )
    return value


def _is_one_of(loss: Any, kinds: Mapping[Any, type[nn.Module]]) -> bool:
    return any(isinstance(loss, kind) and type(loss).forward is kind.forward for kind in kinds.values())


class _RefuseBroadcasts(TorchFunctionMode):
    """Raises InvalidInput in its block if a function broadcasts the output against the target.

    The difference of ``[B, 1]`` and ``[B]`` is ``[B, B]``, whose mean trains a wrong model. The same holds for values
    computed from them, such as the target's logarithm. Functions of the target alone, as in a ranking loss, may
    broadcast it.
    """

    def __init__(self, output: Any, target: Tensor) -> None:
        super().__init__()
        self._rows = len(target)
        # Kept, since ids of freed tensors return.
        self._outputs = {id(value): value for value in _tensors(output)}
        self._targets = {id(target): target}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        values, result = _tensors((args, kwargs)), func(*args, **(kwargs or {}))
        if func in (Tensor.to, Tensor.type_as):  # of the second tensor only the type counts
            values = _tensors(args[:1])
        outputs = [value for value in values if self._is_output(value)]
        targets = [value for value in values if id(value) in self._targets]
        if outputs and targets:
            self._check(func, outputs, targets, result)
        if outputs or targets:
            known = self._outputs if outputs else self._targets
            known |= {id(value): value for value in _tensors(result)}
        return result

    def _is_output(self, value: Tensor) -> bool:
        return id(value) not in self._targets and (value.requires_grad or id(value) in self._outputs)

    def _check(self, func: Any, outputs: list[Tensor], targets: list[Tensor], result: Any) -> None:
        rows, sizes = self._rows, [[*value.shape] for value in (outputs[0], targets[0])]
        squared = isinstance(result, Tensor) and result.shape == (rows, rows)
        compares = any(func is known for known in _ELEMENTWISE | _MULTILABEL)
        if rows > 1 and sorted(sizes) == [[rows], [rows, 1]] and (squared or compares):
            raise InvalidInput(
                f"the loss broadcasts {sizes[0]} and {sizes[1]} to [{rows}, {rows}]; expected equal shapes of output "
                "and target, as after output.squeeze(1) or target.unsqueeze(1)."
            )


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for part in parts for tensor in _tensors(part)]
