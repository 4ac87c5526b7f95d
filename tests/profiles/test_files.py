"""Model profiles as files."""

from pathlib import Path

import pytest

from parallax.base.errors import ConfigError, PlanError
from parallax.cluster.plan_inputs import read_measured
from parallax.cluster.profile_files import check_writable, default_path, save_profile
from parallax.cluster.profiles import ModelProfile, TableProfile

PROFILE = ModelProfile(
    version=1,
    graph="a" * 64,
    cluster="c" * 64,
    steps=20,
    source="sample batches",
    tables=(TableProfile("emb", 6.0, 4.5, ((1, 4.5), (2, 7.25)), 1.125),),
    compute_s=0.25,
)


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / default_path(PROFILE)
    assert path.name == "parallax-profile-aaaaaaaaaaaa-cccccccccccc.json"
    save_profile(PROFILE, path)
    assert read_measured(None, path).model == PROFILE


def test_files_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(PlanError, match="cannot read the profile: No such file"):
        read_measured(None, tmp_path / "none.json")
    for path in (tmp_path, tmp_path / "none" / "p.json", Path("/dev/null/p.json"), Path("/proc/p.json")):
        with pytest.raises(ConfigError, match="Cannot write the profile to"):
            check_writable(path)
        with pytest.raises(ConfigError, match="Cannot write the profile to"):
            save_profile(PROFILE, path)


def test_a_file_that_is_refused_leaves_nothing(tmp_path):
    (tmp_path / "p.json").mkdir()
    with pytest.raises(ConfigError, match="Cannot write the profile to"):
        save_profile(PROFILE, tmp_path / "p.json")
    check_writable(tmp_path / "q.json")
    assert [path.name for path in tmp_path.iterdir()] == ["p.json"]
