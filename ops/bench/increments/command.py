"""The command `python -m ops.bench increments`: bytes in a Zipf run, and a chain compared with a whole checkpoint."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from ops.bench.on_this_machine import printed_by
from parallax.report.text import bytes_text

_SCRIPT = Path(__file__).with_name("script.py")
_CHUNK_BYTES = 64 * 2**20


def add_command(commands: Any) -> None:
    """Adds `increments` to the benchmark's command line."""
    parser = commands.add_parser(
        "increments",
        help="increments beside whole checkpoints",
        description="Trains a table with Zipf ids by Adagrad on two workers of this machine, and saves increments. "
        "Prints their bytes beside those of a whole checkpoint, and compares the chain with the last whole one.",
    )
    parser.add_argument("--rows", type=int, default=1_000_000, metavar="N", help="of the table (1,000,000)")
    parser.add_argument("--width", type=int, default=32, metavar="N", help="elements of a row (32)")
    parser.add_argument("--ids", type=int, default=2048, metavar="N", help="of a worker in a step (2048)")
    parser.add_argument("--increments", type=int, default=20, metavar="N", help="in the chain (20)")
    parser.add_argument("--steps", type=int, default=5, metavar="N", help="from one to the next (5)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Runs the job, and prints what its folder has."""
    with tempfile.TemporaryDirectory(prefix="parallax-bench-") as folder:
        sizes = (arguments.rows, arguments.width, folder, arguments.increments, arguments.steps, arguments.ids)
        printed_by("increments", ["parallax.entry.cli", "run", "--workers", "2", str(_SCRIPT), *map(str, sizes)])
        for line in report(Path(folder), arguments.increments, arguments.increments * arguments.steps):
            print(line)


def report(folder: Path, wanted: int, last_step: int) -> list[str]:
    """The bytes of increments and of a whole checkpoint, and whether the chain gives the same as the last whole one.

    Args:
        folder: of the job's checkpoints.
        wanted: how many increments the chain must have.
        last_step: of the last increment and the last whole checkpoint.
    """
    from parallax.runtime.checkpoint.format.bundle import Bundle
    from parallax.runtime.checkpoint.format.chain import chain_of
    from parallax.runtime.checkpoint.format.links import HEADER
    from parallax.runtime.checkpoint.format.stored_rows import ranges_of, read_rows, stored_parts

    chain, whole = chain_of(str(folder / f"increment-{last_step}")), Bundle(str(folder / f"model.ckpt-{last_step}"))
    if len(chain.increments) != wanted:
        return [f"The chain must have {wanted} increments, and has {len(chain.increments)}: DIFFERENT"]
    each = [_file_bytes(bundle.prefix) for bundle, _ in chain.increments]
    rows = [bundle.tensors[header.tables[0].rows].shape[0] for bundle, header in chain.increments]
    whole_bytes = _file_bytes(whole.prefix)
    began_s, differing = time.monotonic(), []
    for stored in (part for key, tensor in whole.tensors.items() if key != HEADER for part in stored_parts(tensor)):
        for place in ranges_of(whole, stored, _CHUNK_BYTES):
            if not np.array_equal(read_rows(chain, stored, *place), read_rows(whole, stored, *place)):
                differing.append(stored.key)
    said = "equal to the whole one, bit for bit" if not differing else f"DIFFERENT in {', '.join(differing)}"
    return [
        f"whole: {bytes_text(whole_bytes)}; increments: median {bytes_text(round(statistics.median(each)))} "
        f"({statistics.median(each) / whole_bytes:.1%}), at most {bytes_text(max(each))}, together "
        f"{bytes_text(sum(each))}; rows of an increment: median {statistics.median(rows):,.0f}",
        f"{len(each)} whole ones would take {bytes_text(len(each) * whole_bytes)}, "
        f"{len(each) * whole_bytes / sum(each):.1f} times as much",
        f"the chain of {len(each)}, read with the whole one beside it in {time.monotonic() - began_s:.1f} s: {said}",
    ]


def _file_bytes(prefix: str) -> int:
    return sum(path.stat().st_size for path in Path(prefix).parent.glob(f"{Path(prefix).name}.*"))
