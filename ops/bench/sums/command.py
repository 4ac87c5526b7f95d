"""The command `python -m ops.bench sums`: times all-reduces by each method, on one host or on emulated hosts."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ops.bench.sums.results import SIZES, Measured, lines_of
from ops.lab import Lab, why_not
from ops.lab.rates import parse_rate

_LAST_LINES = 25
_ROOT = Path(__file__).resolve().parents[3]


def add_command(commands: Any) -> None:
    """Adds `sums` to the benchmark's command line."""
    parser = commands.add_parser(
        "sums",
        help="seconds of all-reduces by method and size, and the regret of the calibrated choice",
        description="Measures all-reduces by each method and size on one host, or on emulated hosts. Compares the "
        "method that a calibration chooses with the fastest one, for sizes that it has not measured.",
    )
    parser.add_argument(
        "--layouts",
        type=_layouts,
        default="1x4,2x2,4x2",
        metavar="LAYOUT[,LAYOUT...]",
        help="hosts x workers per host, or the workers of each host: 4x2, 3+1+2 (1x4,2x2,4x2)",
    )
    parser.add_argument("--rate", type=parse_rate, default="200mbit", metavar="RATE", help="link rate (200mbit)")
    parser.add_argument("--bytes", type=_numbers, default=SIZES, metavar="N[,N...]", help="sizes (64 to 4194304)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds of each measurement (5)")
    parser.add_argument("--turn-seconds", type=float, default=0.1, metavar="S", help="about S seconds per round (0.1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements to FILE")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Measures the layouts, and prints a table for each."""
    measurements = []
    for workers_by_host in arguments.layouts:
        if len(workers_by_host) > 1 and why_not():
            print(f"No emulated hosts ({why_not()}), so {'+'.join(map(str, workers_by_host))} is not measured.")
            continue
        measurements.append(_measure(workers_by_host, arguments))
        print("\n".join([*lines_of(measurements[-1]), ""]), flush=True)
    if arguments.json:
        text = json.dumps([asdict(one) for one in measurements], indent=1)
        arguments.json.write_text(text + "\n", encoding="utf-8")


def _measure(workers_by_host: tuple[int, ...], arguments: argparse.Namespace) -> Measured:
    with tempfile.TemporaryDirectory(prefix="parallax-bench-") as folder:
        output = Path(folder, "sums.json")
        words = [str(arguments.rounds), str(arguments.turn_seconds), str(output), *map(str, sorted(arguments.bytes))]
        if len(workers_by_host) == 1:
            _check(subprocess.run(_argv(str(workers_by_host[0]), words), **_options()))
            rate = None
        else:
            rate = arguments.rate
            with Lab(len(workers_by_host), rate) as lab:
                resource = str(lab.resource_file(workers_by_host))
                _check(lab.run_on(lab.names[0], _argv(resource, words), **_options()))
        rounds = json.loads(output.read_text(encoding="utf-8"))
    by_size = {method: {int(size): samples for size, samples in of.items()} for method, of in rounds.items()}
    return Measured(workers_by_host, rate, by_size)


def _argv(where: str, words: list[str]) -> list[str]:
    module = ["-m", "ops.bench.jobs.launch_module", "ops.bench.sums.ranks"]
    return [sys.executable, *module, where, "none", *words]


def _options() -> dict[str, Any]:
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": path}
    kept = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return {"env": environment, **kept}


def _check(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode:
        sys.exit("\n".join(["sums: the job failed:", *done.stdout.splitlines()[-_LAST_LINES:]]))


def _layouts(text: str) -> tuple[tuple[int, ...], ...]:
    return tuple(map(_layout, text.split(",")))


def _layout(text: str) -> tuple[int, ...]:
    match = re.fullmatch(r"(\d{1,3})x(\d{1,3})", text)
    counts = (int(match[2]),) * int(match[1]) if match else ()
    if re.fullmatch(r"\d{1,3}(\+\d{1,3})+", text):
        counts = tuple(map(int, text.split("+")))
    if not counts or min(counts) < 1 or sum(counts) < 2:
        raise argparse.ArgumentTypeError(f"a layout is like 4x2 or 3+1+2, of two workers or more; received {text!r}")
    return counts


def _numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(int(word) if word.isdecimal() else 0 for word in text.split(","))
    if min(numbers) < 4 or len(set(numbers)) < 3:
        raise argparse.ArgumentTypeError(f"three sizes or more, of 4 bytes or more; received {text!r}")
    return numbers
