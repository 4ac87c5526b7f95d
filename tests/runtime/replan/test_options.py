"""What a job is to do about better plans: configuration and command line put together, and what is refused."""

import io
from pathlib import Path

import pytest

from parallax.base.errors import ConfigError
from parallax.runtime.replan import options
from parallax.runtime.replan.options import ReplanOptions, check_possible
from parallax.runtime.worker.job_message import JobMessage, read_parcel
from parallax.settings.config import Config
from parallax.settings.environment import Settings
from parallax.settings.merge import merge_settings
from parallax.settings.parts import ReplanConfig


def replan_wish(config, wanted):
    return options.replan_options(merge_settings(config, wanted), wanted)


def test_plans_stay_unless_somebody_asks():
    assert replan_wish(Config(), Settings()) is None
    assert replan_wish(Config(replan="on"), Settings(replan="off")) is None
    assert Config(replan=None).replan == ReplanConfig()


def test_the_command_line_goes_before_the_configuration(tmp_path):
    config = Config(replan=ReplanConfig("ask", 0.3, 7, tmp_path / "plan.json"))
    assert replan_wish(config, Settings()) == ReplanOptions("ask", 0.3, 7, tmp_path / "plan.json")
    found = replan_wish(config, Settings(replan="on", replan_steps=9))
    assert found == ReplanOptions("on", 0.3, 9, tmp_path / "plan.json")
    assert replan_wish(Config(replan="on"), Settings()) == ReplanOptions("on", 0.1, 20, None)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mode": "yes"}, "replan must be one of off, ask, on, got 'yes'"),
        ({"margin": 1}, "margin must be a number at least 0 and below 1, got 1"),
        ({"margin": True}, "margin must be a number at least 0 and below 1"),
        ({"after_steps": 0}, "after_steps must be an integer of at least 1, got 0"),
        ({"plan_file": 3}, "plan_file must be a path"),
    ],
)
def test_what_breaks_a_rule_is_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        ReplanConfig(**{"mode": "on", **values})


def test_a_mode_alone_is_checked_too():
    with pytest.raises(ConfigError, match="replan must be one of off, ask, on"):
        Config(replan="sometimes")
    with pytest.raises(ConfigError, match="replan must be a parallax.ReplanConfig"):
        Config(replan=3)


def test_steps_without_a_mode_are_refused():
    with pytest.raises(ConfigError, match="--replan-steps 5 needs --replan ask or on"):
        replan_wish(Config(), Settings(replan_steps=5))


def test_a_wish_that_cannot_be_met_is_refused_before_the_start():
    wish = replan_wish(Config(replan="ask"), Settings())
    with pytest.raises(ConfigError, match="predicted seconds, which need a cluster profile. Measure one"):
        check_possible(wish, Config())
    check_possible(wish, Config(cluster_profile="c.json"))
    check_possible(None, Config())


def test_the_cluster_profile_reaches_the_workers_in_the_parcel():
    parcel = JobMessage("{}", b"", 1, (0, 0), cluster="{}\n", cluster_name=str(Path("c.json")))
    assert read_parcel(io.BytesIO(b"".join(parcel.pieces()))) == parcel
