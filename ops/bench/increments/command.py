"""The command `python -m ops.bench increments`: compares incremental with full checkpoints in a Zipf run."""

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
        help="incremental checkpoints compared with full ones",
        description="Trains a table with Zipf ids by Adagrad on two workers of this machine, and saves increments. "
        "Prints their sizes and that of a full checkpoint, and compares the chain with the last full checkpoint.",
    )
    parser.add_argument("--rows", type=int, default=1_000_000, metavar="N", help="rows of the table (1,000,000)")
    parser.add_argument("--width", type=int, default=32, metavar="N", help="elements of a row (32)")
    parser.add_argument("--ids", type=int, default=2048, metavar="N", help="ids per worker and step (2048)")
    parser.add_argument("--increments", type=int, default=20, metavar="N", help="increments in the chain (20)")
    parser.add_argument("--steps", type=int, default=5, metavar="N", help="steps between checkpoints (5)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Runs the job, and prints the figures of its checkpoints."""
    with tempfile.TemporaryDirectory(prefix="parallax-bench-") as folder:
        sizes = (arguments.rows, arguments.width, folder, arguments.increments, arguments.steps, arguments.ids)
        printed_by("increments", ["parallax.entry.cli", "run", "--workers", "2", str(_SCRIPT), *map(str, sizes)])
        for line in report(Path(folder), arguments.increments, arguments.increments * arguments.steps):
            print(line)


def report(folder: Path, wanted: int, last_step: int) -> list[str]:
    """Returns lines on the sizes of increments and a full checkpoint, and on whether the chain restores equal values.

    Args:
        folder: the folder of the job's checkpoints.
        wanted: the number of increments that the chain must have.
        last_step: the step of the last increment and of the last full checkpoint.
    """
    from parallax.runtime.checkpoint.format.bundle import Bundle
    from parallax.runtime.checkpoint.format.chain import chain_of
    from parallax.runtime.checkpoint.format.links import HEADER
    from parallax.runtime.checkpoint.format.stored_rows import ranges_of, read_rows, stored_parts

    chain, whole = chain_of(str(folder / f"increment-{last_step}")), Bundle(str(folder / f"model.ckpt-{last_step}"))
    if len(chain.increments) != wanted:
        return [f"The chain has {len(chain.increments)} increments instead of {wanted}: DIFFERENT"]
    each = [_file_bytes(bundle.prefix) for bundle, _ in chain.increments]
    rows = [bundle.tensors[header.tables[0].rows].shape[0] for bundle, header in chain.increments]
    whole_bytes = _file_bytes(whole.prefix)
    began_s, differing = time.monotonic(), []
    for stored in (part for key, tensor in whole.tensors.items() if key != HEADER for part in stored_parts(tensor)):
        for place in ranges_of(whole, stored, _CHUNK_BYTES):
            if not np.array_equal(read_rows(chain, stored, *place), read_rows(whole, stored, *place)):
                differing.append(stored.key)
    said = "equal to the full one, bit for bit" if not differing else f"DIFFERENT in {', '.join(differing)}"
    return [
        f"full checkpoint: {bytes_text(whole_bytes)}; increments: median {bytes_text(round(statistics.median(each)))} "
        f"({statistics.median(each) / whole_bytes:.1%}), at most {bytes_text(max(each))}, in total "
        f"{bytes_text(sum(each))}; rows of an increment: median {statistics.median(rows):,.0f}",
        f"{len(each)} full checkpoints would take {bytes_text(len(each) * whole_bytes)}, "
        f"{len(each) * whole_bytes / sum(each):.1f} times as much",
        f"the chain of {len(each)}, read and compared with the full one in {time.monotonic() - began_s:.1f} s: {said}",
    ]


def _file_bytes(prefix: str) -> int:
    return sum(path.stat().st_size for path in Path(prefix).parent.glob(f"{Path(prefix).name}.*"))
