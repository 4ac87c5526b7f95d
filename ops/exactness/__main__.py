"""`python -m ops.exactness`: trains graphs of a grammar by N workers and by one process, and counts the outcomes.

    python -m ops.exactness --graphs 300 --seed 1
    python -m ops.exactness --graphs 10000 --processes 2
    python -m ops.exactness --seed 1 --only 17
    python -m ops.exactness --script exactness/17.py

The exit status is 1 if any graph is wrong, fails with another error than the project's, has a false claim, or cannot be
built.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from parallax.settings.arguments import CommandParser


def parser() -> argparse.ArgumentParser:
    command_parser = CommandParser(prog="python -m ops.exactness", description=__doc__.split("\n")[0])
    command_parser.add_argument("--graphs", type=int, default=300, help="number of graphs (default %(default)s)")
    command_parser.add_argument(
        "--seed", type=int, default=1, help="seed and number determine a graph (default %(default)s)"
    )
    command_parser.add_argument("--first", type=int, default=0, help="number of the first graph (default %(default)s)")
    command_parser.add_argument("--only", type=int, metavar="NUMBER", help="try and print only this graph")
    command_parser.add_argument(
        "--script", type=Path, metavar="FILE", help="try the program in a file instead of the grammar's"
    )
    command_parser.add_argument("--workers", type=int, help="workers of every graph (default: two to five)")
    command_parser.add_argument(
        "--routes", help="separated by commas; all; or one a graph, in turn (default: all for few graphs, one for many)"
    )
    command_parser.add_argument(
        "--layouts",
        action="store_true",
        default=None,
        help="set Config(layouts=True), with unequal shares of an open batch",
    )
    command_parser.add_argument(
        "--claims", action="store_true", help="check the analysis's claims about single tensors too"
    )
    command_parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="where to write minimal programs that show the faults"
    )
    command_parser.add_argument("--processes", type=int, default=1, help="processes at a time (default %(default)s)")
    command_parser.add_argument("--minutes", type=float, help="start no graph after so many minutes")
    return command_parser


def main(argv: list[str]) -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    options = parser().parse_args(argv)
    from ops.exactness.command import run  # imports TensorFlow

    return run(options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
