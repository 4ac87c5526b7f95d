"""The published models: plans in the docs are those of today, and what a training is measured by."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ops.bench.published.command import report
from ops.bench.published.plans import (
    MODELS,
    PAGE,
    RESOURCE,
    Published,
    kept_plans,
    plan_text,
    resource_text,
    shown,
    with_plans,
)
from ops.bench.published.training import Trained, Wanted, write_text
from ops.bench.published.watching import Marks, ProcessPeak
from parallax.analysis.planner import make_plan
from parallax.cluster.resource_file import parse_resource_text
from parallax.plans.plan import one_host
from tests.analysis.specs import sparse, spec


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_the_page_has_the_plans_that_the_command_prints(
    model: Published, tmp_path: Path, golden: Callable[[str, str], None]
) -> None:
    made = plan_text(model, tmp_path)
    assert dict(kept_plans(PAGE.read_text(encoding="utf-8")))[model.command] == shown(made)
    golden(f"published_{model.name.replace(' ', '_').lower()}.txt", made)


def test_the_page_has_a_plan_of_each_model_for_the_machines_it_shows() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [command for command, _ in kept_plans(page)] == [model.command for model in MODELS]
    assert f"```yaml\n# {RESOURCE}\n{resource_text()}```" in page
    assert [host.num_workers for host in parse_resource_text(resource_text(), RESOURCE).hosts] == [6] * 8


def test_plans_are_put_into_a_page_and_read_back() -> None:
    page = "Before.\n\n```yaml\nhosts:\n```\n\n```console\n$ parallax plan a.py\nold\n```\n\nAfter.\n"
    new = with_plans(page, {"parallax plan a.py": "new\n", "parallax plan b.py": "b\n"})
    assert new == page.replace("old", "new") and dict(kept_plans(new)) == {"parallax plan a.py": "new\n"}


def test_of_a_long_plan_the_page_shows_the_first_and_the_last_lines() -> None:
    lines = [f"{number}\n" for number in range(14)]
    assert shown("".join(lines)) == "".join([*lines[:4], "...\n", *lines[6:]])
    assert shown("".join(lines[:13])) == "".join(lines[:13])


def test_steps_and_bytes_are_counted_between_lines() -> None:
    times = iter([10.0, 14.0])
    counters = iter([{"host0": (100, 1000), "host1": (0, 0)}, {"host0": (500, 1600), "host1": (40, 800)}])
    marks = Marks(r"step (\d+) of", lambda: next(times), lambda: next(counters))
    for line in ("[0] starts", "[0] step 2 of 20: loss 3.1", "something else", "[0] step 4 of 20: loss 2.5"):
        marks.read(line)
    assert marks.between(2, 4) == (2.0, 400, 200)
    with pytest.raises(KeyError):
        marks.between(2, 6)


def test_a_text_has_words_for_all_rows_and_enough_of_them(tmp_path: Path) -> None:
    wanted = Wanted(hosts=2, rows=50, unroll=3, batch=4, steps=4)
    write_text(tmp_path, wanted)
    words = (tmp_path / "vocabulary").read_text().split()
    assert len(set(words)) == len(words) == 50 and words[:2] == ["<S>", "<UNK>"]
    text = (tmp_path / "text").read_text()
    assert set(text.split()) <= set(words) and len(text.split()) >= 2 * 4 * 3 * 4
    assert wanted.flags(tmp_path)[-2:] == ["--vocab", str(tmp_path / "vocabulary")]


def test_the_report_has_each_worker_beside_its_prediction() -> None:
    plan = make_plan(spec(sparse("emb", (1000, 64))), one_host(2))
    held = [
        ProcessPeak("host0", "launcher", 2**29),
        ProcessPeak("host0", "worker", 2**30),
        ProcessPeak("host1", "worker", 3 * 2**29),
    ]
    trained = Trained(plan, 0.5, 2_000_000, 1_000_000, ((2, 9.5), (4, 9.25)), tuple(held), 3 * 2**30, 12.0)
    lines = list(report(Wanted(hosts=2, steps=4), trained, 20.0))
    assert "64,000 sparse and 0 dense" in lines[0]
    assert any(line.startswith("memory of worker 1") and line.endswith("1.50 GiB") for line in lines)
    assert any(line.startswith("memory of all") and line.endswith("3.00 GiB") for line in lines)
    assert any(line.startswith("sent by a host") and line.endswith("2.0 MB") for line in lines)
