"""Model profiles as files."""

from pathlib import Path

import pytest

from parallax.errors import ConfigError, PlanError
from parallax.profile_files import check_writable, default_path, read_model_profile, write_model_profile
from parallax.profiles import ModelProfile, TableProfile

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
    write_model_profile(PROFILE, path)
    assert read_model_profile(path, "a" * 64, "c" * 64) == PROFILE


@pytest.mark.parametrize(("graph", "cluster", "what"), [("b" * 64, "", "graph"), ("", "b" * 64, "cluster")])
def test_a_profile_of_something_else_is_refused(tmp_path, graph, cluster, what):
    write_model_profile(PROFILE, tmp_path / "p.json")
    with pytest.raises(PlanError, match=f"of this {what}, bbbbbbbbbbbb, and is of .*Measure it anew"):
        read_model_profile(tmp_path / "p.json", graph, cluster)


def test_files_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(PlanError, match="must be readable: No such file"):
        read_model_profile(tmp_path / "none.json")
    for path in (tmp_path, tmp_path / "none" / "p.json", Path("/dev/null/p.json")):
        with pytest.raises(ConfigError, match="that can be written"):
            check_writable(path)
        with pytest.raises(ConfigError, match="that can be written"):
            write_model_profile(PROFILE, path)
