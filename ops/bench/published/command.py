"""The command `python -m ops.bench published`: plans of the published models, and training of the largest.

    python -m ops.bench published [--write]             # makes the plans of docs/published.md again
    python -m ops.bench published --train [--batch 64] [--steps 20] [--hosts 4] [--rate 1gbit]

`--train` needs an emulated cluster (hence root) and some 18 GiB. Exit status 1: a plan differs from the page's, or all
processes together exceeded the memory limit.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ops.bench.published.plans import MODELS, PAGE, kept_plans, plan_text, shown, with_plans
from ops.bench.race.command import rate
from ops.lab import why_not

if TYPE_CHECKING:
    from ops.bench.published.training import Trained, Wanted

LIMIT_GIB = 20.0
"""Memory limit of all processes of a training run together."""

_SIZES = ("hosts", "rows", "width", "state", "samples", "unroll", "batch", "steps")


def add_command(commands: Any) -> None:
    """Adds `published` to the benchmark's command line."""
    from ops.bench.published.training import Wanted

    parser = commands.add_parser("published", help="plans of the published models, and a training run at full size")
    parser.add_argument("--train", action="store_true", help="train the language model on emulated hosts")
    parser.add_argument("--write", action="store_true", help=f"write the plans to {PAGE.name}")
    parser.add_argument("--rate", type=rate, default="1gbit", help="rate of each link (1gbit); 0: no limit")
    parser.add_argument("--limit-gib", type=float, default=LIMIT_GIB, help=f"memory of all processes ({LIMIT_GIB:.0f})")
    defaults: dict[str, Any] = {field.name: field.default for field in fields(Wanted)}
    for name in _SIZES:
        parser.add_argument(f"--{name}", type=int, default=defaults[name], metavar="N", help=f"({defaults[name]})")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Makes the plans or trains; exits with the status."""
    if not arguments.train:
        sys.exit(_print_plans(arguments.write))
    from ops.bench.published.training import Wanted, train
    from ops.lab.lab import Lab

    if reason := why_not():
        sys.exit(f"published: the training needs an emulated cluster: {reason}")
    if arguments.steps < 10 or arguments.steps % 10:
        sys.exit(f"published: --steps must be a multiple of 10, got {arguments.steps}.")
    wanted = Wanted(rate_bytes_per_s=arguments.rate or None, **{name: getattr(arguments, name) for name in _SIZES})
    with Lab(wanted.hosts, wanted.rate_bytes_per_s) as lab:
        trained = train(lab, wanted, _log)
    print("\n".join(report(wanted, trained, arguments.limit_gib)))
    sys.exit(0 if trained.most_bytes <= arguments.limit_gib * 2**30 else 1)


def report(wanted: Wanted, trained: Trained, limit_gib: float) -> Iterator[str]:
    """Yields lines that compare the measurements with the plan's predictions."""
    plan, predicted = trained.plan, trained.plan.prediction
    sizes = {v.name: _elements(v.shape) for v in plan.variables}
    sparse = sum(sizes[v.name] for v in plan.variables if v.cls.value == "sparse")
    dense = sum(sizes[v.name] for v in plan.variables if v.cls.value == "dense")
    link = "no limit" if wanted.rate_bytes_per_s is None else f"{wanted.rate_bytes_per_s * 8 / 1e6:.0f} Mbit/s"
    yield f"language model of {sparse:,} sparse and {dense:,} dense parameters, with AdaGrad's slots as many again"
    yield f"{wanted.hosts} hosts with a worker each, links of {link}; {wanted.batch} x {wanted.unroll} words a worker"
    yield "losses: " + ", ".join(f"{loss:.3f} (step {step})" for step, loss in trained.losses)
    yield f"first steps done after {trained.start_s:.0f} s; timed: steps {wanted.steps // 2 + 1} to {wanted.steps}"
    yield ""
    sent, received = (max((getattr(load, f) for load in predicted.loads), default=0) for f in ("out_bytes", "in_bytes"))
    step = f"{predicted.step_s:.2f} s" if predicted.step_s is not None else f"- ({predicted.unknown})"
    rows = [("", "plan", "measured"), ("step", step, f"{trained.step_s:.2f} s")]
    rows.append(("sent by a host in a step", _mb(sent), _mb(trained.sent_bytes)))
    rows.append(("received by a host in a step", _mb(received), _mb(trained.received_bytes)))
    workers = [held for held in trained.processes if held.kind == "worker"]
    memory = [one for one in predicted.memory if one.kind == "worker"]
    for held, one in zip(workers, memory, strict=False):
        expected = one.values_bytes + one.exchange_bytes + one.model_bytes
        rows.append((f"memory of worker {one.number}", _gib(expected), _gib(held.peak_bytes)))
    others = [held for held in trained.processes if held.kind != "worker"]
    rows.append(
        ("memory of the launcher", "", _gib(max((h.peak_bytes for h in others if h.kind == "launcher"), default=0)))
    )
    total = sum(m.values_bytes + m.exchange_bytes + m.model_bytes for m in predicted.memory)
    rows.append((f"memory of all at one time (limit {limit_gib:.0f} GiB)", _gib(total), _gib(trained.most_bytes)))
    width = max(len(name) for name, _, _ in rows)
    yield from (f"{name:<{width}}  {expected:>12}  {found:>12}".rstrip() for name, expected, found in rows)
    if memory:
        one = memory[0]
        yield f"plan, worker 0: values and slots {_gib(one.values_bytes)}, exchanges {_gib(one.exchange_bytes)}, " + (
            f"all else {_gib(one.model_bytes)} as measured in the first steps"
        )


def _print_plans(write: bool) -> int:
    page, made = PAGE.read_text(encoding="utf-8"), {}
    for model in MODELS:
        with tempfile.TemporaryDirectory(prefix="parallax-published-") as folder:
            made[model.command] = plan_text(model, Path(folder))
        print(f"$ {model.command}\n{made[model.command]}")
    if write:
        PAGE.write_text(with_plans(page, made), encoding="utf-8")
        return 0
    kept = dict(kept_plans(page))
    differing = [model.name for model in MODELS if kept.get(model.command) != shown(made[model.command])]
    if differing:
        _log(f"{PAGE} has other plans of: {', '.join(differing)}. `--write` replaces them.")
    return int(bool(differing))


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size else "-"


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
