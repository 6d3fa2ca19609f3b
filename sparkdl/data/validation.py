"""Counts of invalid values, so that one message covers a whole partition."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

Counts = Counter[str]

NULLS, NAN, INFINITE = "nulls", "NaN", "infinite values"

RAGGED = (
    'Describe the column as InputColumn(name, ragged="offsets") or InputColumn(name, ragged="padded"), or cut and '
    "pad the arrays first."
)

_CURES = {
    NULLS: "Drop or fill nulls first, for example with df.na.drop() or pyspark.ml.feature.Imputer.",
    NAN: "Drop or fill NaN first: df.na.drop() drops rows with NaN in a column of numbers.",
    INFINITE: "Drop or replace infinite values first, which dividing by 0 and log(0) give.",
}
_RECAST = "Round or cast the column first, or give it a dtype that holds its values."


def count(flat: npt.NDArray[Any], dtype: np.dtype[Any], *, nulls: int = 0) -> Counts:
    """Count the NaN, infinite and unrepresentable values of a conversion to ``dtype``, and add the nulls."""
    found = Counts({NULLS: nulls})
    if flat.dtype.kind == "f":
        found[NAN] = int(np.isnan(flat).sum())
        found[INFINITE] = int(np.isinf(flat).sum())
        flat = flat[np.isfinite(flat)]
    with np.errstate(invalid="ignore", over="ignore"):
        numbers = flat.astype(dtype)
        if dtype.kind in "iub":
            kind = "whole numbers" if dtype.kind in "iu" else "0 or 1"
            changed = (numbers.astype(flat.dtype) != flat) | ((numbers < 0) != (flat < 0))
            found[f"values that are not {kind} within {dtype}'s range"] = int(changed.sum())
        elif flat.dtype.kind == "f":
            found[f"values beyond {dtype}'s range"] = int((~np.isfinite(numbers)).sum())
    return +found


def message(name: str, counts: Counts, *, rows: int | None = None) -> str:
    """Describe a column's invalid values and the remedy; ``rows`` is the number of checked rows, if known."""
    ordered = [*(fault for fault in _CURES if fault in counts), *(fault for fault in counts if fault not in _CURES)]
    *most, last = [f"{counts[fault]} {fault}" for fault in ordered]
    found = f"{', '.join(most)} and {last}" if most else last
    cures = dict.fromkeys(_CURES.get(fault, _RECAST) for fault in ordered)
    among = "" if rows is None else f" in {rows} rows"
    return f"column {name!r} has {found}{among}; expected none. {' '.join(cures)}"
