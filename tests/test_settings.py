"""What is asked of a process: declared once, read from the command line and the environment, merged in one place."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from parallax.base.errors import ConfigError
from parallax.entry import cli
from parallax.settings.config import Config
from parallax.settings.environment import Role, Settings, as_variables, is_commanded, settings
from parallax.settings.islands import Islands
from parallax.settings.merge import merge_settings, options_by_setting
from parallax.settings.options import OF_SCRIPTS, RUN, variable_of
from parallax.settings.parts import ReplanConfig

EXAMPLES = {
    "workers": 3,
    "accumulate_steps": 4,
    "micro_batches": 8,
    "replan_steps": 7,
    "max_restarts": 3,
    "min_hosts": 2,
    "no_spare": True,
    "whole_every": 5,
    "keep_last": 3,
    "memory_steps": 6,
    "keep_every_hours": 1.5,
    "beside_training": False,
    "preemption_grace_s": 20.0,
    "folder_timeout_s": 90.0,
    "host_timeout_s": 12.5,
    "traced_bytes": 5,
    "whole_bytes": 6,
    "measure_steps": 2,
    "verify_first": 1,
    "steps": 6,
    "tolerance": 1e-3,
    "all": True,
    "memory": True,
    "examples": 64,
    "compute": True,
    "claims": True,
    "framework_log": 0,
    "wire_dtype": "float16",
    "compute_dtype": "bfloat16",
    "replan": "ask",
}


def parsed(*words):
    return cli._read_settings(cli.command_parser().parse_args([str(word) for word in words]))


def test_every_option_is_a_setting_and_comes_through_the_environment(monkeypatch):
    given = {name: EXAMPLES.get(name, f"/{name}") for name, options in options_by_setting().items() if options}
    asked = Settings(role=Role.PROFILE, **given)
    for name, text in as_variables(asked).items():
        monkeypatch.setenv(name, text)
    assert settings() == asked


@pytest.mark.parametrize("command", ["run", "plan", "verify", "check", "profile"])
def test_every_option_of_a_command_sets_the_setting_of_its_name(command):
    for name, options in options_by_setting().items():
        for option in options:
            if command in option.commands:
                value = EXAMPLES.get(name, f"/{name}")
                words = [] if option.const is not None else [value]
                for spelling in option.spellings(name):
                    found = parsed(command, spelling, *words, "train.py", "--own")
                    expected = Settings(found.role, script_seed=found.script_seed, **{name: value})
                    assert found == expected, spelling


def test_what_is_asked_goes_before_the_configuration_in_parts_too():
    config = Config(wire_dtype="bfloat16", plan_file="a.json", seed=3, replan=ReplanConfig("ask", 0.3, 7))
    assert merge_settings(config, Settings()) == config
    found = merge_settings(config, Settings(wire_dtype="float16", accumulate_steps=2, replan_steps=9, workers=5))
    assert found == replace(config, wire_dtype="float16", accumulate_steps=2, replan=ReplanConfig("ask", 0.3, 9))
    assert found.plan_file == Path("a.json") and config.replan.after_steps == 7


@pytest.mark.parametrize(
    ("given", "kept"),
    [(None, None), (4, 4), ("4", 4), ("a", ("a",)), ("a,b", ("a", "b")), (["a", "b:0"], ("a", "b:0"))],
)
def test_stages_are_a_number_or_names(given, kept):
    assert Config(stages=given).stages == kept


@pytest.mark.parametrize("odd", [0, -1, True, 2.0, [], ["a", ""], ["a", "a"], ["a", 3], "a,,b"])
def test_other_stages_are_refused(odd):
    with pytest.raises(ConfigError, match="stages must"):
        Config(stages=odd)


def test_islands_are_settings_or_their_text():
    found = Config(islands="every=8, pull=0.5,simultaneous,count=3").islands
    assert found == Islands(every=8, pull=0.5, simultaneous=True, count=3)
    assert Islands.of_text("wire_dtype=bfloat16") == Islands(wire_dtype="bfloat16")
    assert Config().islands is None and Config(islands=Islands()).islands == Islands(32, 0.7, 0.9)
    assert merge_settings(Config(islands=Islands(every=4)), Settings(islands="every=2")).islands == Islands(every=2)


@pytest.mark.parametrize(
    ("odd", "rule"),
    [
        ({"every": 0}, "every must be an integer of at least 1, got 0"),
        ({"every": 2.5}, "every must be an integer"),
        ({"pull": 0}, "pull must be a number above 0 and at most 1, got 0"),
        ({"pull": 1.5}, "pull must be a number"),
        ({"pull": float("nan")}, "pull must be a number"),
        ({"outer_rate": 0.0}, "outer_rate must be a number above 0"),
        ({"outer_momentum": 1.0}, "outer_momentum must be a number at least 0 and below 1, got 1.0"),
        ({"simultaneous": 1}, "simultaneous must be True or False"),
        ({"simultaneous": True}, "must be below 2"),
        ({"count": 1}, "count must be an integer of at least 2"),
    ],
)
def test_other_islands_are_refused(odd, rule):
    with pytest.raises(ConfigError, match=rule):
        Islands(**odd)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("every=many", "every in islands must be a number, got 'many'"),
        ("every=8,every=9", "must not repeat a setting"),
        ("often=8", "Islands has no setting 'often'"),
        ("wire_dtype=float16", "wire_dtype must be .*bfloat16.*, got 'float16'"),
        ("every", "every must be an integer"),
    ],
)
def test_other_texts_of_islands_are_refused(text, rule):
    with pytest.raises(ConfigError, match=rule):
        Config(islands=text)
    with pytest.raises(ConfigError, match="islands must be a parallax.Islands"):
        Config(islands=8)


def test_micro_batches_say_how_many_batches_an_update_takes():
    assert Config().batches_per_update == 1
    assert Config(micro_batches=4).batches_per_update == Config(accumulate_steps=4).batches_per_update == 4
    with pytest.raises(ConfigError, match="Set micro_batches alone"):
        _ = Config(micro_batches=4, accumulate_steps=2).batches_per_update


def test_settings_of_a_configuration_that_have_options_are_all_merged():
    config = Config()
    for name in {field.name for field in fields(Config)} & {
        name for name, found in options_by_setting().items() if found
    }:
        if name not in ("workers", "replan", "stages", "islands"):  # a resource file goes between; others are parsed
            value = EXAMPLES.get(name, f"/{name}")
            found = getattr(merge_settings(config, Settings(**{name: value})), name)
            assert found == (Path(value) if str(value).startswith("/") else value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("steps", "many", "The environment variable PARALLAX_STEPS has an invalid value: invalid literal .* 'many'"),
        ("tolerance", "1e", "The environment variable PARALLAX_TOLERANCE has"),
        ("role", "cook", "PARALLAX_ROLE has .*: 'cook' is not a valid Role"),
    ],
)
def test_a_variable_that_holds_something_else_is_named(monkeypatch, name, text, message):
    monkeypatch.setenv(variable_of(name), text)
    with pytest.raises(ConfigError, match=message):
        settings()


def test_a_word_that_no_configuration_takes_is_refused_with_its_rule():
    with pytest.raises(ConfigError, match="wire_dtype must be one of bfloat16, float16"):
        merge_settings(Config(), Settings(wire_dtype="float8"))


@pytest.mark.parametrize("command", OF_SCRIPTS)
def test_a_module_and_its_arguments_stand_in_place_of_a_script(command, capsys):
    sizes = ["--hosts", "2"] if command == "simulate" else []

    def parse(words):
        return cli.command_parser().parse_args(words)

    found = parse([command, *sizes, "-m", "package.module", "--workers", "9", "-m", "x"])
    assert (found.script, found.args) == ("-m", ["package.module", "--workers", "9", "-m", "x"])
    assert getattr(found, "workers", None) is None
    found = parse([command, *sizes, "train.py", "-m", "x"])
    assert (found.script, found.args) == ("train.py", ["-m", "x"])
    for words, error in (([], "required: script"), (["-m"], "argument -m: expected the name of a module")):
        with pytest.raises(SystemExit):
            parse([command, *sizes, *words])
        assert error in capsys.readouterr().err


def test_machines_are_named_in_one_way(capsys):
    with pytest.raises(SystemExit):
        parsed(RUN, "--workers", 2, "-r", "machines", "train.py")
    assert "not allowed with argument" in capsys.readouterr().err


def test_a_worker_is_commanded_where_its_launching_process_was(monkeypatch):
    monkeypatch.delenv(variable_of("role"), raising=False)
    assert not is_commanded()
    for wanted, expected in (
        (Settings(), True),
        (Settings(Role.WORKER), True),
        (Settings(Role.WORKER, by_itself=True), False),
    ):
        for name, text in as_variables(wanted).items():
            monkeypatch.setenv(name, text)
        assert is_commanded() is expected, wanted
