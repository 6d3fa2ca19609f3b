"""A line search by the strong Wolfe conditions, one evaluation at a time.

For ``phi(t) = f(x + t d)`` with ``phi'(0) < 0`` it looks for a step ``t`` with

    phi(t) <= phi(0) + c1 t phi'(0)        enough is won (Armijo)
    |phi'(t)| <= c2 |phi'(0)|              and it is flat enough there

first by longer and longer steps until some interval must hold one, then by shrinking that interval with cubic
interpolation: J. Nocedal and S. Wright, Numerical optimization, 2nd edition 2006, algorithms 3.5 and 3.6. The search is
plain data that is asked for a step and told what was found there, since an evaluation is a round over the cluster:

    >>> search = begin(Point(0.0, 1.0, -2.0), 0.3)  # (t - 1)^2, from t = 0 with a first step of 0.3
    >>> while search.status == "searching":
    ...     search = tell(search, Point(search.t, (search.t - 1) ** 2, 2 * (search.t - 1)))
    >>> search.status, round(search.t, 2)
    ('found', 0.3)
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

C1 = 1e-4
C2 = 0.9
_LONGER = 10.0  # times the last step, at most
_MARGIN = 0.1  # of an interval, that a step keeps from its ends


@dataclass(frozen=True)
class Point:
    """What is known of a step.

    Attributes:
        t: the step.
        value: ``phi(t)``.
        slope: ``phi'(t)``.
    """

    t: float
    value: float
    slope: float


@dataclass(frozen=True)
class Search:
    """A line search that is under way.

    Attributes:
        start: the point at 0.
        t: the step at which the function is wanted; once the status is ``"found"``, the step that was found.
        low: the step with the smallest value so far that won enough.
        high: the other end of the interval; None as long as steps become longer.
        tries: evaluations so far.
        status: ``"searching"``, ``"found"``, or ``"failed"``.
        slack: by how much rounding may make a value wrong.
    """

    start: Point
    t: float
    low: Point
    high: Point | None = None
    tries: int = 0
    status: str = "searching"
    slack: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The search as plain data."""
        return asdict(self)

    @staticmethod
    def from_json(values: dict[str, Any]) -> Search:
        """The search whose fields are ``values``."""
        points = {name: values[name] and Point(**values[name]) for name in ("start", "low", "high")}
        return Search(**{**values, **points})


def begin(start: Point, t: float, *, slack: float = 0.0) -> Search:
    """A search from the point at 0, whose slope is below 0, with a first step to try."""
    return Search(start, t, low=start, slack=slack)


def tell(search: Search, found: Point, *, most: int = 25) -> Search:
    """The search after the function was evaluated at ``search.t``.

    Args:
        search: before.
        found: what was found there. A value that is not finite says that the step was too long.
        most: evaluations after which it fails.
    """
    search = replace(search, tries=search.tries + 1)
    if _enough(search, found) and abs(found.slope) <= -C2 * search.start.slope:
        return replace(search, status="found", low=found)
    search = _longer(search, found) if search.high is None else _narrower(search, found)
    width = math.inf if search.high is None else abs(search.high.t - search.low.t)
    if search.tries >= most or width <= 1e-15 * max(search.low.t, 1e-300):
        return replace(search, status="failed")
    return search


def _enough(search: Search, found: Point) -> bool:
    bound = search.start.value + C1 * found.t * search.start.slope + search.slack
    return math.isfinite(found.value) and math.isfinite(found.slope) and found.value <= bound


def _longer(search: Search, found: Point) -> Search:
    """No interval is known yet to hold a good step."""
    if not _enough(search, found) or (search.tries > 1 and found.value >= search.low.value):
        return _between(replace(search, high=found))
    if found.slope >= 0:
        return _between(replace(search, low=found, high=search.low))
    longer = _cubic(search.low, found)
    least, most = found.t + _MARGIN * (found.t - search.low.t), _LONGER * found.t
    return replace(search, low=found, t=min(max(longer, least), most) if math.isfinite(longer) else 2 * found.t)


def _narrower(search: Search, found: Point) -> Search:
    assert search.high is not None
    if not _enough(search, found) or found.value >= search.low.value:
        return _between(replace(search, high=found))
    high = search.low if found.slope * (search.high.t - search.low.t) >= 0 else search.high
    return _between(replace(search, low=found, high=high))


def _between(search: Search) -> Search:
    """With the next step inside of the interval."""
    low, high = search.low, search.high
    assert high is not None
    first, last = min(low.t, high.t), max(low.t, high.t)
    margin = _MARGIN * (last - first)
    t = _cubic(low, high)
    if not math.isfinite(t):
        t = (first + last) / 2 if math.isfinite(high.value) else first + margin
    return replace(search, t=min(max(t, first + margin), last - margin))


def _cubic(one: Point, two: Point) -> float:
    """Where the cubic through two points with their slopes has its minimum; NaN where it has none."""
    if one.t == two.t or not all(map(math.isfinite, (one.value, two.value, one.slope, two.slope))):
        return math.nan
    first = one.slope + two.slope - 3 * (one.value - two.value) / (one.t - two.t)
    square = first * first - one.slope * two.slope
    if square < 0:
        return math.nan
    second = math.copysign(math.sqrt(square), two.t - one.t)
    below = two.slope - one.slope + 2 * second
    return two.t - (two.t - one.t) * (two.slope + second - first) / below if below else math.nan
