"""Command lines are taken as they are written: no abbreviations, and what is unknown is answered with the nearest."""

import argparse
import importlib
import inspect
import shlex
import subprocess
import sys

import pytest

import parallax
from parallax.base.errors import ConfigError
from parallax.entry.command_line import command_parser, complete
from parallax.settings.arguments import CommandParser
from parallax.settings.variables import Variable

OPS = ("bench", "book", "exactness", "faults", "lab", "mutants")


def refusal(capsys, parse):
    with pytest.raises(SystemExit) as ended:
        parse()
    assert ended.value.code == 2
    return capsys.readouterr().err


def parsers_of(parser, name=""):
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, inner in action.choices.items():
                yield from parsers_of(inner, f"{name} {word}".strip())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--wrokers", "2", "train.py"], "unknown option --wrokers. Did you mean --workers?"),
        (["run", "--wrokers=2", "train.py"], "unknown option --wrokers. Did you mean --workers?"),
        (["run", "--wrokers"], "unknown option --wrokers. Did you mean --workers?"),
        (["run", "--worker", "2", "train.py"], "unknown option --worker. Did you mean --workers?"),
        (["run", "--workers", "2", "--max-restart", "3", "train.py"], "Did you mean --max-restarts?"),
        (["plan", "--no-beside-trainin", "train.py"], "unknown option --no-beside-trainin; --help lists the options"),
        (["doctor", "--ckpt", "folder"], "unknown option --ckpt. Did you mean --ckpt-dir?"),
        (["calibrate", "--quik", "-o", "c.json"], "Did you mean --quick?"),
        (["simulate", "--host", "2,4", "train.py"], "Did you mean --hosts?"),
        (["checkpoint", "export", "--plan", "a", "b"], "Did you mean --plain?"),
        (["run", "-q", "train.py"], "unknown option -q"),
        (["rnu", "train.py"], "Did you mean run?"),
        (["checkpoint", "compcat", "folder"], "Did you mean compact?"),
        (["run", "--wire-dtype", "bfloat61", "train.py"], "got 'bfloat61'. Did you mean bfloat16?"),
        (["show", "a.json", "b.json"], "unexpected arguments: b.json"),
    ],
)
def test_what_is_unknown_is_named_with_the_nearest_and_the_commands_own_usage(words, said, capsys):
    err = refusal(capsys, lambda: command_parser().parse_args(words))
    assert said in err
    command = words[0] if words[0] != "rnu" else ""
    assert err.startswith(f"usage: parallax {command}".strip())


def test_the_arguments_of_a_script_are_its_own():
    given = ["run", "--workers", "2", "train.py", "--worker", "3", "-q", "--", "--wrokers=1"]
    found = command_parser().parse_args(given)
    assert (found.workers, found.script, found.args) == (2, "train.py", ["--worker", "3", "-q", "--", "--wrokers=1"])
    found = command_parser().parse_args(["run", "-r", "hosts", "--", "--odd.py", "--x"])
    assert (found.resource, found.script, found.args) == ("hosts", "--odd.py", ["--x"])
    found = command_parser().parse_args(["run", "--workers", "2", "-m", "package.module", "--worker", "3"])
    assert (found.workers, found.script, found.args) == (2, "-m", ["package.module", "--worker", "3"])
    found = command_parser().parse_args(["checkpoint", "export", "--plain", "ckpt", "out"])
    assert (found.plain, found.checkpoint, found.folder) == (True, "ckpt", "out")
    assert command_parser().parse_args(["simulate", "--hosts=2,4", "--batch", "-1", "train.py"]).batch == -1


def test_no_command_takes_an_abbreviation(capsys):
    for name, parser in parsers_of(command_parser()):
        assert isinstance(parser, CommandParser) and not parser.allow_abbrev, name
        longest = max((word for word in parser._option_string_actions if word.startswith("--")), key=len)
        assert f"unknown option {longest[:-1]}" in refusal(capsys, lambda p=parser, w=longest: p.parse_args([w[:-1]]))


@pytest.mark.parametrize("name", OPS)
def test_no_command_of_ops_takes_an_abbreviation(name, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [f"ops.{name}", "--hel"])
    module = importlib.import_module(f"ops.{name}" if name == "mutants" else f"ops.{name}.__main__")
    arguments = [["--hel"]] if inspect.signature(module.main).parameters else []
    assert "unknown option --hel. Did you mean --help?" in refusal(capsys, lambda: module.main(*arguments))


PARTS = [
    (parallax.Config, "wrokers", "workers"),
    (parallax.Config, "ckpt_confg", "ckpt_config"),
    (parallax.PSConfig, "replicate_variable", "replicate_variables"),
    (parallax.MPIConfig, "mpirun_option", "mpirun_options"),
    (parallax.CommunicationConfig, "ps_confg", "ps_config"),
    (parallax.CheckPointConfig, "ckpt_dri", "ckpt_dir"),
    (parallax.ProfileConfig, "profile_step", "profile_steps"),
    (parallax.ReplanConfig, "after_step", "after_steps"),
    (parallax.RestartConfig, "max_restart", "max_restarts"),
    (parallax.TableConfig, "table_dir", "tables_dir"),
    (Variable, "touched_row", "touched_rows"),
]


@pytest.mark.parametrize(("part", "wrong", "right"), PARTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_misspelled_setting_is_refused_with_the_nearest(part, wrong, right):
    with pytest.raises(ConfigError, match=f"{part.__name__} has no setting '{wrong}'; its settings are .*"):
        part(**{wrong: None})
    with pytest.raises(ConfigError, match=rf"Did you mean {right}\?$"):
        part(**{wrong: None})


def test_every_class_of_settings_says_so():
    from ops.book.generated import _parts

    assert {*_parts(parallax.Config()), Variable} == {part for part, _, _ in PARTS}


def test_settings_by_position_are_counted_and_given_once():
    with pytest.raises(ConfigError, match="MPIConfig takes 2 positional settings .*, got 3"):
        parallax.MPIConfig("", False, 3)
    with pytest.raises(
        ConfigError, match="A setting of Config must be given once, got run_option by position and by keyword"
    ):
        parallax.Config("PS", run_option="MPI")
    config = parallax.Config()
    with pytest.raises(ConfigError, match=r"no setting 'wrokers'; .* Did you mean workers\?"):
        config.wrokers = 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_shells_are_given_the_names_of_commands(shell):
    script = complete(shell)
    assert all(name in script for name in ("verify", "calibrate", "workers"))


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["ver"], ["verify"]),
        (["run", "--worke"], ["--workers"]),
        (["run", "--wire-dtype", ""], ["float16", "bfloat16"]),
        (["checkpoint", "com"], ["compact"]),
        (["show", "pla"], ["plan.json"]),
    ],
)
def test_bash_completes_commands_options_values_and_files(tmp_path, words, offered):
    (tmp_path / "plan.json").touch()
    line = " ".join(map(shlex.quote, ["parallax", *words]))
    asks = f"COMP_WORDS=({line}); COMP_CWORD={len(words)}; _shtab_parallax; echo ${{COMPREPLY[@]}}"
    found = subprocess.run(
        ["bash", "-c", f"{complete('bash')}\n{asks}"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert set(offered) <= set(found.stdout.split())
