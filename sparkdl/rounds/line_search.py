"""Line search for the strong Wolfe conditions, one evaluation at a time.

For ``phi(t) = f(x + t d)`` with ``phi'(0) < 0`` it finds a step ``t`` with

    phi(t) <= phi(0) + c1 t phi'(0)        sufficient decrease (Armijo)
    |phi'(t)| <= c2 |phi'(0)|              curvature

It first extends the step until an interval must contain such a ``t``, then shrinks the interval by cubic interpolation:
J. Nocedal and S. Wright, Numerical optimization, 2nd edition 2006, algorithms 3.5 and 3.6. Since each evaluation is a
round over the cluster, the search is plain data: the caller evaluates ``phi`` at ``search.t`` and passes the result to
``observe``.

    >>> search = begin(SearchPoint(0.0, 1.0, -2.0), 0.3)  # (t - 1)^2, from t = 0 with a first step of 0.3
    >>> while search.status == "searching":
    ...     search = observe(search, SearchPoint(search.t, (search.t - 1) ** 2, 2 * (search.t - 1)))
    >>> search.status, round(search.t, 2)
    ('found', 0.3)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

C1 = 1e-4
C2 = 0.9
_LONGER = 10.0  # largest ratio of two successive steps
_MARGIN = 0.1  # smallest distance of a step from the interval's ends, relative to its width


@dataclass(frozen=True)
class SearchPoint:
    """Value ``phi(t)`` and slope ``phi'(t)`` at a step ``t``."""

    t: float
    value: float
    slope: float


@dataclass(frozen=True)
class LineSearch:
    """State of a line search, which starts at ``t = 0``."""

    start: SearchPoint
    t: float  # the step to evaluate next; with status "found", the result
    low: SearchPoint  # the smallest value with sufficient decrease
    high: SearchPoint | None = None  # the other end of the interval; None while steps are extended
    tries: int = 0
    status: str = "searching"  # or "found" or "failed"
    slack: float = 0.0  # bound on the rounding error of a value

    @staticmethod
    def from_json(values: dict[str, Any]) -> LineSearch:
        """The search with these fields, as of ``asdict``."""
        points = {name: values[name] and SearchPoint(**values[name]) for name in ("start", "low", "high")}
        return LineSearch(**{**values, **points})


def begin(start: SearchPoint, t: float, *, slack: float = 0.0) -> LineSearch:
    """Start a search at the point of ``t = 0``, whose slope is negative, with a first step ``t``."""
    return LineSearch(start, t, low=start, slack=slack)


def observe(search: LineSearch, point: SearchPoint, *, most: int = 25) -> LineSearch:
    """The search after an evaluation at ``search.t``; it fails after ``most`` evaluations.

    A value of ``point`` that is not finite means that the step is too long.
    """
    search = replace(search, tries=search.tries + 1)
    if _enough(search, point) and abs(point.slope) <= -C2 * search.start.slope:
        return replace(search, status="found", low=point)
    search = _longer(search, point) if search.high is None else _narrower(search, point)
    width = math.inf if search.high is None else abs(search.high.t - search.low.t)
    if search.tries >= most or width <= 1e-15 * max(search.low.t, 1e-300):
        return replace(search, status="failed")
    return search


def _enough(search: LineSearch, point: SearchPoint) -> bool:
    bound = search.start.value + C1 * point.t * search.start.slope + search.slack
    return math.isfinite(point.value) and math.isfinite(point.slope) and point.value <= bound


def _longer(search: LineSearch, point: SearchPoint) -> LineSearch:
    if not _enough(search, point) or (search.tries > 1 and point.value >= search.low.value):
        return _between(replace(search, high=point))
    if point.slope >= 0:
        return _between(replace(search, low=point, high=search.low))
    longer = _cubic(search.low, point)
    least, most = point.t + _MARGIN * (point.t - search.low.t), _LONGER * point.t
    return replace(search, low=point, t=min(max(longer, least), most) if math.isfinite(longer) else 2 * point.t)


def _narrower(search: LineSearch, point: SearchPoint) -> LineSearch:
    assert search.high is not None
    if not _enough(search, point) or point.value >= search.low.value:
        return _between(replace(search, high=point))
    high = search.low if point.slope * (search.high.t - search.low.t) >= 0 else search.high
    return _between(replace(search, low=point, high=high))


def _between(search: LineSearch) -> LineSearch:
    low, high = search.low, search.high
    assert high is not None
    first, last = min(low.t, high.t), max(low.t, high.t)
    margin = _MARGIN * (last - first)
    t = _cubic(low, high)
    if not math.isfinite(t):
        t = (first + last) / 2 if math.isfinite(high.value) else first + margin
    return replace(search, t=min(max(t, first + margin), last - margin))


def _cubic(one: SearchPoint, two: SearchPoint) -> float:
    if one.t == two.t or not all(map(math.isfinite, (one.value, two.value, one.slope, two.slope))):
        return math.nan
    first = one.slope + two.slope - 3 * (one.value - two.value) / (one.t - two.t)
    square = first * first - one.slope * two.slope
    if square < 0:
        return math.nan
    second = math.copysign(math.sqrt(square), two.t - one.t)
    below = two.slope - one.slope + 2 * second
    return two.t - (two.t - one.t) * (two.slope + second - first) / below if below else math.nan
