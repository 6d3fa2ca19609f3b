"""Residuals of error feedback: the part of the gradients that no worker has sent yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sparkdl.errors import InvalidInput
from sparkdl.training.strategies.buckets import Bucket


def check_real(reducer: object, buckets: Sequence[Bucket]) -> None:
    """Raise InvalidInput if a bucket is complex: half precision, magnitudes and signs need real numbers."""
    for bucket in buckets:
        if not bucket.buffer.is_floating_point():
            raise InvalidInput(
                f"{reducer} got parameters of {bucket.buffer.dtype}; expected real ones. Set reduce=Exact()."
            )


def zero_residual(bucket: Bucket, elements: int) -> Tensor:
    """A residual of ``elements`` zeros on the bucket's device, in float32 or the wider dtype of the bucket."""
    return torch.zeros(elements, dtype=residual_dtype(bucket), device=bucket.buffer.device)


def residual_dtype(bucket: Bucket) -> torch.dtype:
    """float32, or the wider dtype of the bucket."""
    return torch.promote_types(bucket.buffer.dtype, torch.float32)


def drop_nonfinite_(residual: Tensor, evidence: Tensor) -> None:
    """Set infinite and NaN elements of a residual to 0, since they would make every later sum NaN.

    ``evidence`` is not finite if an element of the residual is not. A GPU does not read it, which would stop the
    stream, and looks at the residual instead.
    """
    if residual.is_cuda or not bool(evidence.isfinite().all()):
        residual.nan_to_num_(0.0, 0.0, 0.0)


def load_tensors(reducer: object, tensors: Mapping[str, Sequence[Tensor]], state: Mapping[str, Any]) -> None:
    """Overwrite tensors, by name and bucket, with saved ones; raises InvalidInput if those are of others."""
    for name, targets in tensors.items():
        saved = state.get(name, [])
        shapes, expected = ([list(tensor.shape) for tensor in one] for one in (saved, targets))
        if shapes != expected:
            raise InvalidInput(
                f"the saved {name} have the shapes {shapes}; {reducer} has {expected}. Resume with the reducer, "
                "bucket_bytes and model of the saved run, or start a new run elsewhere."
            )
        for target, tensor in zip(targets, saved, strict=True):
            target.copy_(tensor)
