"""Counts of invalid values, so that one message covers a whole partition."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Counts = Counter[str]

RAGGED = (
    'Describe the column as InputColumn(name, ragged="offsets") or InputColumn(name, ragged="padded"), or cut and '
    "pad the arrays first."
)

NULLS, _NAN, _INFINITE = "nulls", "NaN", "infinite values"
_CURES = {
    NULLS: "Drop or fill nulls first, for example with df.na.drop() or pyspark.ml.feature.Imputer.",
    _NAN: "Drop or fill NaN first: df.na.drop() drops rows with NaN in a column of numbers.",
    _INFINITE: "Drop or replace infinite values first, which dividing by 0 and log(0) give.",
}
_RECAST = "Round or cast the column, or give it a dtype that holds its values. Class probabilities are several columns."


def count(flat: Array, dtype: np.dtype[Any], *, nulls: int = 0) -> Counts:
    """Count the NaN, infinite and unrepresentable values of a conversion to ``dtype``, and add the nulls."""
    counts = Counts({NULLS: nulls})
    if flat.dtype.kind == "f":
        counts[_NAN] = int(np.isnan(flat).sum())
        counts[_INFINITE] = int(np.isinf(flat).sum())
        flat = flat[np.isfinite(flat)]
    with np.errstate(invalid="ignore", over="ignore"):
        number = int(changed_values(flat, flat.astype(dtype)).sum())
    if dtype.kind in "iub":
        kind = "whole numbers" if dtype.kind in "iu" else "0 or 1"
        counts[f"values that are not {kind} within {dtype}'s range"] = number
    elif flat.dtype.kind == "f":
        counts[f"values beyond {dtype}'s range"] = number
    return +counts


def changed_values(flat: Array, numbers: Array) -> Array:
    """Whether each finite value lies outside the dtype of ``numbers``."""
    changed: Array
    if numbers.dtype.kind in "iub":  # compares signs too, since -1 and 255 have the same 8 bits
        changed = (numbers.astype(flat.dtype) != flat) | ((numbers < 0) != (flat < 0))
    else:
        changed = ~np.isfinite(numbers)
    return changed


def message(name: str, counts: Counts, *, rows: int | None = None) -> str:
    """Describe a column's invalid values and the remedy; ``rows`` is the number of checked rows, if known."""
    ordered = [*(fault for fault in _CURES if fault in counts), *(fault for fault in counts if fault not in _CURES)]
    *most, last = [f"{counts[fault]} {fault}" for fault in ordered]
    faults = f"{', '.join(most)} and {last}" if most else last
    cures = dict.fromkeys(_CURES.get(fault, _RECAST) for fault in ordered)
    among = "" if rows is None else f" in {rows} rows"
    return f"column {name!r} has {faults}{among}; expected none. {' '.join(cures)}"
