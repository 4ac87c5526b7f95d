"""What the bench of predictions says of its cases; a tiny run of it needs a lab."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ops.bench.jobs.steps import Rounds
from ops.bench.predictions.command import add_command, wanted_of
from ops.bench.predictions.measure import Wanted, cases, missing_cases
from ops.bench.predictions.results import Case, case_from_json, table
from ops.bench.race.accelerators import twin_sizes
from ops.lab import why_not

ROOT = Path(__file__).parents[2]
MBIT = 125_000


def case(model: str, hosts: int, predicted_s: float, *rounds_s: float) -> Case:
    return Case(model, hosts, 200 * MBIT, predicted_s, (("compute", 0.01),), rounds_s)


def test_the_error_is_of_the_median_round() -> None:
    found = case("lm", 4, 0.11, 0.2, 0.1, 0.09)
    assert found.measured_s == 0.1 and found.error == pytest.approx(0.1)
    assert case_from_json(found.to_json()) == found


def test_median_and_worst_error_are_held_against_what_is_wanted() -> None:
    good = [case("lm", 4, 0.105, 0.1), case("nmt", 4, 0.95, 1.0), case("dense", 8, 0.119, 0.1)]
    lines = table(good)
    assert lines[1].split() == ["lm", "4", "200", "105.0", "ms", "100.0", "ms", "+5.0%", "100.0-100.0", "ms"]
    assert lines[-2:] == [
        "Median error 5.0%, target at most 8%: met",
        "Worst error 19.0%, target at most 20%: met",
    ]
    missed = table([case("lm", 4, 0.05, 0.1)])
    assert [line.rpartition(" ")[2] for line in missed[-2:]] == ["MISSED", "MISSED"]
    assert len(table([])) == 1


def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    wanted = Wanted(("lm", "nmt"), (100 * MBIT,), 200 * MBIT, 4, 8, Rounds(3, 1.0), tmp_path)
    known = case("nmt", 8, 0.11, 0.1)
    wanted.case("nmt", 8).write_text(known.to_json())
    found = cases(wanted, lambda: False, pytest.fail)  # there is no time for anything
    assert found == (known,)
    assert missing_cases(wanted, found) == 3


class Place:
    """Where two hosts would be."""

    hosts = ("one", "other")

    def __init__(self, folder: Path) -> None:
        self.folder = folder


def test_a_case_of_the_twin_is_the_race_s_network_at_the_cluster_s_pace(tmp_path: Path) -> None:
    wanted = Wanted(("lm",), (50 * MBIT,), 100 * MBIT, 4, 8, Rounds(3, 1.0), tmp_path, "today-10gbit")
    task = wanted.task(Place(tmp_path), "job", "lm", plan_file="plan.json")
    assert (task.model, task.sizes) == ("twin", twin_sizes("today-10gbit", "lm", {}))
    assert task.more["config"] == {"plan_file": "plan.json"} and task.workers == 2


def test_the_twin_s_links_are_the_cluster_s_slowed_down(tmp_path: Path) -> None:
    parsed = parsed_arguments("--accelerators", "today-10gbit")
    wanted = wanted_of(parsed, tmp_path)
    assert (
        set(wanted.models) == {"lm", "nmt", "resnet50", "inception_v3", "wide"}
        and wanted.accelerators == "today-10gbit"
    )
    assert wanted.held_out == round(10e9 / 8 / 1024)
    held_out = wanted_of(parsed_arguments("--accelerators", "today-10gbit", "--held-out", "20mbit"), tmp_path).held_out
    assert held_out == 20 * MBIT
    with pytest.raises(ValueError, match="must be one of lm, nmt, resnet50, inception_v3, got 'recsys'"):
        wanted_of(parsed_arguments("--accelerators", "2019", "--models", "recsys"), tmp_path)


def test_without_accelerators_models_are_the_race_s(tmp_path: Path) -> None:
    wanted = wanted_of(parsed_arguments(), tmp_path)
    assert wanted.accelerators is None and wanted.held_out == 200 * MBIT and "word2vec" in wanted.models
    assert wanted.task(Place(tmp_path), "job", "lm").sizes == {}


def parsed_arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_command(parser.add_subparsers())
    return parser.parse_args(["predictions", *words])


@pytest.mark.slow
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_model_is_predicted_and_measured(tmp_path: Path) -> None:
    file = tmp_path / "cases.json"
    sizes = ("--from-hosts", "2", "--hosts", "2", "--rounds", "2", "--turn-seconds", "0.1")
    argv = [sys.executable, "-m", "ops.bench", "predictions", "--models", "embed", "--rates", "400mbit", *sizes]
    done = subprocess.run(
        [*argv, "--json", str(file)], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(file.read_text())
    assert found["model"] == "embed" and found["hosts"] == 2 and len(found["rounds_s"]) == 2
    assert found["predicted_s"] > 0
    assert "Median error" in done.stdout
