"""The command `python -m ops.bench checkpoint`: one job that saves while it stands and during training, by turns.

While it stands it saves twice: once worker 0 alone sees the folder and writes, and once all workers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from ops.bench.on_lab import output_of
from ops.bench.on_this_machine import printed_by
from ops.bench.race.command import rate
from ops.lab.lab import Lab, why_not
from parallax.report.text import bytes_text

LINE = "checkpoint bench "
"""Begins a line of figures in what the job prints."""

_SCRIPT = Path(__file__).with_name("script.py")
_WIDTH = 64


def add_command(commands: Any) -> None:
    """Adds `checkpoint` to the benchmark's command line."""
    parser = commands.add_parser(
        "checkpoint",
        help="checkpoints during training, and while it waits",
        description="Trains a table on workers of this machine, or of emulated hosts, and saves each round's step "
        "three times: while training waits, by worker 0 alone and by all workers, and during training. Prints the "
        "seconds until each is on the disk, how long training waited, and what processes held above their share.",
    )
    parser.add_argument("--gigabytes", type=float, default=2.0, metavar="GB", help="table and slot together (2)")
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="on this machine (4)")
    parser.add_argument("--hosts", type=int, metavar="N", help="emulated ones of a worker each, which see one disk")
    parser.add_argument("--rate", type=rate, default="200mbit", help="of each emulated host's link (200mbit)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="checkpoints of each kind (3)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Runs the job and prints the figures of its rounds."""
    rows = int(arguments.gigabytes * 1e9 / (8 * _WIDTH))
    with tempfile.TemporaryDirectory(prefix="parallax-bench-") as folder:
        words = [str(_SCRIPT), str(rows), str(_WIDTH), folder, str(arguments.rounds)]
        if arguments.hosts is None:
            output = printed_by(
                "checkpoint", ["parallax.entry.cli", "run", "--workers", str(arguments.workers), *words]
            )
        elif reason := why_not():
            sys.exit(f"checkpoint: {reason}")
        else:
            with Lab(arguments.hosts, arguments.rate or None) as lab:
                output = output_of(lab, ["run", "-r", str(lab.resource_file(1)), *words])
    print("\n".join(report([json.loads(line.split(LINE, 1)[1]) for line in output.splitlines() if LINE in line])))


def report(lines: list[dict[str, Any]]) -> list[str]:
    """The table, a line for each round.

    Args:
        lines: the figures of each worker in each round, the rounds of a worker in order.
    """
    by_rank: dict[int, list[dict[str, Any]]] = {}
    for line in lines:
        by_rank.setdefault(line["rank"], []).append(line)
    rounds = list(zip(*(by_rank[rank] for rank in sorted(by_rank)), strict=True))
    first = rounds[0][0]
    said = [
        f"{bytes_text(first['bytes'])}, {len(by_rank)} workers; before, a worker holds at most "
        f"{bytes_text(max(one['share'] for one in rounds[0]))} (PSS); memory above that is of the worker that has most",
        f"{'one, s':>9}{'above':>9}   |{'all, s':>9}{'above':>9}   |"
        f"{'waits, s':>9}{'of it':>7}{'written, s':>11}{'above':>9}{'copied':>9}"
        f"{'steps':>6}{'ms each':>8}{'before':>7}   bits",
    ]
    for workers in rounds:
        most = {key: max(float(one[key]) for one in workers) for key in workers[0] if key != "equal"}
        said.append(
            f"{most['alone_s']:9.2f}{bytes_text(round(most['alone_above'])):>9}   |{most['stood_s']:9.2f}"
            f"{bytes_text(round(most['stood_above'])):>9}   |{most['waited_s']:9.3f}"
            f"{most['waited_s'] / most['stood_s']:7.1%}{most['written_s']:11.1f}{bytes_text(round(most['above'])):>9}"
            f"{bytes_text(round(most['copied'])):>9}{most['steps']:6.0f}{most['step_meanwhile_s'] * 1e3:8.1f}"
            f"{most['step_s'] * 1e3:7.1f}   {'equal' if workers[0]['equal'] else 'DIFFERENT'}"
        )
    share = statistics.median(
        max(one["waited_s"] for one in workers) / max(one["stood_s"] for one in workers) for workers in rounds
    )
    above = max(one["above"] for workers in rounds for one in workers)
    writing = statistics.median(
        max(one["stood_s"] for one in workers) / max(one["alone_s"] for one in workers) for workers in rounds
    )
    said.append(f"All workers write it in {writing:.2f} of the time that worker 0 alone takes (median).")
    said.append(
        f"Training waits {share:.1%} of the time that it waits without (median; at most 5 % asked), and a process "
        f"holds at most {bytes_text(above)} above its share (300 MB asked)."
    )
    return said
