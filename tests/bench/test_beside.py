"""A race with another checkout of the project."""

import argparse
import json
import sys
from dataclasses import replace

import pytest
import tensorflow as tf  # noqa: F401  # of the tier of graphs

from ops.bench.race.command import add_command, wanted_of
from ops.bench.race.place import ROOT, OnThisMachine
from ops.bench.race.systems import BESIDE, commands_of
from ops.bench.race.turns import Task


def wanted(*words):
    parser = argparse.ArgumentParser()
    add_command(parser.add_subparsers())
    return wanted_of(parser.parse_args(["race", *words]))


def test_the_other_checkout_runs_its_own_code_and_is_told_that_it_is_parallax(tmp_path):
    place = OnThisMachine(tmp_path, 2)
    task = Task(BESIDE, "embed", {}, str(tmp_path / "task"), 2, 1, 2, {"beside": str(tmp_path / "other")})
    [command] = commands_of(place, task)
    assert command.root == tmp_path / "other"
    assert command.argv[0] == str(tmp_path / "other" / ".venv" / "bin" / "python")
    assert command.argv[1:] == ("-m", "ops.bench.race.systems.parallax", str(task.file))
    assert json.loads(task.file.read_text())["system"] == "parallax"
    [own] = commands_of(place, replace(task, system="parallax", more={}))
    assert own.root == ROOT


def test_what_runs_on_a_checkout_finds_its_packages_first(tmp_path):
    place = OnThisMachine(tmp_path, 1)
    (tmp_path / "where.py").write_text("print(__file__)")
    with (tmp_path / "log").open("wb") as log:
        place.start("host0", (sys.executable, "-m", "where"), {}, log, tmp_path).wait(60)
    assert (tmp_path / "log").read_text() == f"{tmp_path / 'where.py'}\n"


def test_the_other_checkout_is_named_where_it_is_asked_for(tmp_path):
    assert wanted("--systems", f"parallax,{BESIDE}", "--beside", str(ROOT)).beside == str(ROOT)
    for words in (("--systems", BESIDE), ("--beside", str(ROOT))):
        with pytest.raises(SystemExit, match="among the systems and --beside DIR belong together"):
            wanted(*words)
    with pytest.raises(SystemExit, match=r"must be a checkout of the project after `make install`, but .* is not"):
        wanted("--systems", BESIDE, "--beside", str(tmp_path))
