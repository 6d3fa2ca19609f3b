"""The program ``sparkdl``, also ``python -m sparkdl.cli``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sparkdl.cli.commands import COMMANDS, run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; default arguments: ``sys.argv[1:]``."""
    width = max(map(len, COMMANDS)) + 2
    commands = "\n".join(f"  {name:{width}}{command.summary}" for name, command in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="sparkdl",
        usage="sparkdl COMMAND [--config FILE] [--key value ...]",
        description="Deep learning with PyTorch on the data a Spark cluster already holds.",
        epilog=f"commands:\n{commands}\n\nsparkdl COMMAND --help lists a command's arguments.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of the commands below")
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = parser.parse_args(words[:1]).command
    return run(name, words[1:], prog=f"sparkdl {name}")


if __name__ == "__main__":
    sys.exit(main())
