"""The command `python -m ops.bench memory`: peak memory of each process of a job, compared with the plan's.

On emulated hosts of limited memory, a first job builds a model that is nearly all table, trains it for some steps and
saves it. A second job restores it. A sum over some rows is printed for both. Each line is a process: the estimate of
`parallax plan --memory`, the peaks of both jobs, and their ratios to the estimate.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ops.bench.on_lab import output_of
from ops.lab.lab import Lab, why_not
from parallax.report.text import bytes_text

_SCRIPT = Path(__file__).with_name("script.py")
_LINE = re.compile(r"(?:\[(\d+)\]|launcher) (begins step|ends step|peak) (\d+)(?: digest ([\d.]+))?")
_COPIES = {"adagrad": 2, "lazy-adam": 3}
"""Optimizer -> copies of a table, counting the table and its slots."""


def add_command(commands: Any) -> None:
    """Adds `memory` to the benchmark's command line."""
    parser = commands.add_parser("memory", help="peak memory of each process of a job, compared with the plan's")
    parser.add_argument("--gigabytes", type=float, default=10.0, metavar="GB", help="size of table and slots (10)")
    parser.add_argument("--optimizer", choices=tuple(_COPIES), default="adagrad", help="(adagrad)")
    parser.add_argument("--width", type=int, default=64, metavar="N", help="elements of a row (64)")
    parser.add_argument("--hosts", type=int, default=4, metavar="N", help="emulated hosts with one worker each (4)")
    parser.add_argument("--limit", type=float, default=4.0, metavar="GIB", help="memory of each host (4)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Runs both jobs, and prints their peak memory."""
    if reason := why_not():
        sys.exit(f"memory: {reason}")
    rows = int(arguments.gigabytes * 1e9 / (_COPIES[arguments.optimizer] * 4 * arguments.width))
    with Lab(arguments.hosts, memory_bytes=int(arguments.limit * (1 << 30))) as lab:
        words = [str(_SCRIPT), str(rows), str(arguments.width), str(lab.folder / "checkpoints"), arguments.optimizer]
        resource = ["-r", str(lab.resource_file(1))]
        planned = lab.folder / "memory.json"
        print(output_of(lab, ["plan", "--memory", "--json", str(planned), *resource, *words]))
        memory = json.loads(planned.read_text(encoding="utf-8"))
        first, second = (_parse_output(output_of(lab, ["run", *resource, *words])) for _ in range(2))
    for process in memory["processes"]:
        name, total = _name(process), process["total_bytes"]
        one, other = (int(job[name]["peak"][0]) for job in (first, second))
        ratios = [f"{bytes_text(peak)} ({peak / total:.3f} of the plan's)" for peak in (one, other)]
        print(f"{name}: planned {bytes_text(total)}, trained and saved {ratios[0]}, restored {ratios[1]}")
    ended, restored = first["worker 0"]["ends step"], second["worker 0"]["begins step"]
    print(f"saved at step {ended[0]}, rows {ended[1]}; restored at step {restored[0]}, rows {restored[1]}")


def _name(process: Mapping[str, Any]) -> str:
    return "launcher" if process["kind"] == "launcher" else f"{process['kind']} {process['number']}"


def _parse_output(output: str) -> dict[str, dict[str, tuple[str, str]]]:
    """Returns process -> printed word -> (number, digest)."""
    words_by_process: dict[str, dict[str, tuple[str, str]]] = {}
    for rank, what, number, digest in _LINE.findall(output):
        words_by_process.setdefault(f"worker {rank}" if rank else "launcher", {})[what] = (number, digest)
    return words_by_process
