"""The command `python -m ops.bench checkpoint`: one job saves with training stopped and with training running.

With training stopped it saves twice: once worker 0 alone sees the folder and writes, once all workers write.
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
"""Prefix of the job's output lines with figures."""

_SCRIPT = Path(__file__).with_name("script.py")
_WIDTH = 64


def add_command(commands: Any) -> None:
    """Adds `checkpoint` to the benchmark's command line."""
    parser = commands.add_parser(
        "checkpoint",
        help="the cost of checkpoints, with training stopped and with training running",
        description="Trains a table on workers of this machine or of emulated hosts. Each round saves one step three "
        "times: with training stopped, by worker 0 alone and by all workers, and with training running. Prints the "
        "seconds until each checkpoint is on the disk, the time that training waits, and the extra memory.",
    )
    parser.add_argument("--gigabytes", type=float, default=2.0, metavar="GB", help="size of table and slot (2)")
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="workers on this machine (4)")
    parser.add_argument("--hosts", type=int, metavar="N", help="emulated hosts with one worker each and a shared disk")
    parser.add_argument("--rate", type=rate, default="200mbit", help="rate of each emulated link (200mbit)")
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
    """Returns the table, one line per round.

    Args:
        lines: the figures of each worker and round; each worker's rounds are in order.
    """
    by_rank: dict[int, list[dict[str, Any]]] = {}
    for line in lines:
        by_rank.setdefault(line["rank"], []).append(line)
    rounds = list(zip(*(by_rank[rank] for rank in sorted(by_rank)), strict=True))
    first = rounds[0][0]
    said = [
        f"{bytes_text(first['bytes'])}, {len(by_rank)} workers; peak PSS of a worker without checkpoints: "
        f"{bytes_text(max(one['share'] for one in rounds[0]))}; above: the largest increase of a worker's peak PSS",
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
    said.append(f"With all workers writing, a checkpoint takes {writing:.2f} of worker 0's time (median).")
    said.append(
        f"Running training waits {share:.1%} of the time of a blocking checkpoint (median; target: at most 5 %), and a "
        f"worker's peak PSS grows by at most {bytes_text(above)} (target: 300 MB)."
    )
    return said
