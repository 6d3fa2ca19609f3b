"""The result of one check, and its line of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

_MOST = 4  # findings in one line


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Attributes:
        name: what was checked, as at most two words.
        status: ``"skip"`` if an earlier failure leaves nothing to check.
        text: figures and host names; of a failure also what to do about it.
    """

    name: str
    status: Literal["ok", "FAIL", "skip"]
    text: str

    @property
    def line(self) -> str:
        """The check as one line of a report."""
        return f"{self.status:4}  {self.name:18}  {' '.join(self.text.split())}"


def check_result(name: str, findings: Sequence[str], remedy: str, *, otherwise: str) -> CheckResult:
    """A failure with its findings and what to do about them; without any, ``ok`` with the text ``otherwise``."""
    if not findings:
        return CheckResult(name, "ok", otherwise)
    return CheckResult(name, "FAIL", f"{listed(findings)}. {remedy}")


def listed(findings: Iterable[str]) -> str:
    """Join the first findings without repeats, and count the others."""
    different = [*dict.fromkeys(findings)]
    more = [f"{len(different) - _MOST} more"] if len(different) > _MOST else []
    return "; ".join([*different[:_MOST], *more])
