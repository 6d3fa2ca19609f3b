"""Two checkouts of sparkdl in turn: each figure of this checkout against that of another one.

Both versions run in processes that stay. They measure one after the other, in alternating order.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

from benchmarks.pairs import Side, environment, interleave, options
from benchmarks.session import ROOT

BAR = "at most 1.03 for each figure"
SIDE = Path(__file__).with_name("side.py")


class Version:
    """Runs the measurements of one checkout in a separate process."""

    def __init__(self, root: Path) -> None:
        variables = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen([sys.executable, str(SIDE)], cwd=root, env=variables, text=True, **pipes)
        self.names: list[str] = self._answer()

    def figure(self, name: str) -> float:
        """Measure once, in seconds."""
        assert self._process.stdin is not None
        print(name, file=self._process.stdin, flush=True)
        return float(self._answer())

    def _answer(self) -> Any:
        answers: IO[str] | None = self._process.stdout
        assert answers is not None
        return json.loads(answers.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the figures named on the command line."""
    parser = options(__doc__, rounds=9)
    parser.add_argument(
        "--other", type=Path, default=ROOT.parent / "earlier", help="the other checkout (default %(default)s)"
    )
    parser.add_argument("names", nargs="*", metavar="FIGURE", help="figures to measure (default all)")
    args = parser.parse_args(arguments)
    print(environment())
    here, other = Version(ROOT), Version(args.other.resolve())
    largest = 0.0
    for name in args.names or here.names:
        sides = [Side(side, partial(version.figure, name)) for side, version in (("this", here), ("other", other))]
        pairs = interleave(*sides, rounds=args.rounds, warmups=2)
        ratios = sorted(over / under for over, under in pairs.rounds)
        print(f"{name:<32}{pairs.ratio:>7.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})", flush=True)
        largest = max(largest, pairs.ratio)
    for version in (here, other):
        version.close()
    print(f"ratio {largest:.4g} (bar: {BAR})")


if __name__ == "__main__":
    main()
