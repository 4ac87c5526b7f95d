"""The configuration as drivers of 2019 write it, and what it refuses."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow.compat.v1 as tf

import parallax
from parallax.analysis.graph_to_plan import constraints_of
from parallax.settings.config import list_ineffective_settings

ROOT = Path(__file__).parents[2]


def config_of_2019(tmp_path):
    """How the examples of 2019 build theirs."""
    ckpt_config = parallax.CheckPointConfig(ckpt_dir=str(tmp_path), save_ckpt_steps=5, save_ckpt_secs=None)
    ps_config = parallax.PSConfig(
        replicate_variables=True,
        protocol="grpc",
        local_aggregation=True,
        boundary_among_servers=True,
        boundary_between_workers_and_servers=True,
    )
    mpi_config = parallax.MPIConfig(mpirun_options="-mca btl 'tcp,self' -v")
    parallax_config = parallax.Config()
    parallax_config.run_option = "MPI"
    parallax_config.average_sparse = False
    parallax_config.communication_config = parallax.CommunicationConfig(ps_config, mpi_config)
    parallax_config.ckpt_config = ckpt_config
    parallax_config.profile_config = parallax.ProfileConfig(
        profile_dir=str(tmp_path), profile_steps=[3, 4], profile_range=None, profile_worker=0
    )
    parallax_config.redirect_path = str(tmp_path / "out")
    parallax_config.export_graph_path = None
    parallax_config.search_partitions = False
    return parallax_config


def test_a_configuration_written_as_in_2019_is_taken(tmp_path):
    config = config_of_2019(tmp_path)
    assert config.run_option == "MPI" and config.average_sparse is False
    assert config.communication_config.mpi_config.mpirun_options == ("-mca", "btl", "tcp,self", "-v")
    assert config.ckpt_config.ckpt_dir == tmp_path and config.ckpt_config.save_ckpt_steps == 5
    assert config.redirect_path == tmp_path / "out"
    assert list_ineffective_settings(config) == ()


def test_the_first_nine_settings_may_be_given_by_position():
    assert parallax.Config("PS", False) == parallax.Config(run_option="PS", average_sparse=False)
    assert parallax.ParallaxConfig is parallax.Config
    with pytest.raises(TypeError):
        parallax.Config(*[None] * 10)


def test_defaults_are_told():
    config = parallax.Config()
    assert (config.run_option, config.average_sparse, config.search_partitions) == ("HYBRID", True, False)
    assert parallax.Config(run_option=None, communication_config=None, ckpt_config=None) == config
    assert parallax.MPIConfig().mpirun_options == () == parallax.MPIConfig(None).mpirun_options
    assert parallax.MPIConfig(["-x", "A B"]).mpirun_options == ("-x", "A B")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("run_option", "hybrid"),
        ("run_option", "ALL"),
        ("average_sparse", 1),
        ("search_partitions", "yes"),
        ("redirect_path", 3),
        ("export_graph_path", ["a"]),
        ("communication_config", parallax.PSConfig()),
        ("ckpt_config", "folder"),
        ("profile_config", 3),
        ("wire_dtype", "float32"),
        ("wire_dtype", True),
        ("accumulate_steps", 0),
        ("accumulate_steps", None),
        ("accumulate_steps", 2.0),
        ("accumulate_steps", True),
        ("compute_dtype", "float16"),
        ("compute_dtype", True),
        ("partitions", {"emb": 0}),
        ("partitions", {"emb": True}),
        ("partitions", {3: 2}),
        ("partitions", 4),
        ("routes", {"emb": "ring"}),
        ("touched_rows", {"emb": 0}),
        ("variables", {"emb": "ps"}),
        ("variables", {3: parallax.Variable()}),
        ("workers", 0),
        ("no_such_setting", 1),
    ],
)
def test_a_bad_value_is_refused_when_it_is_set(name, value):
    config = parallax.Config()
    with pytest.raises(parallax.ConfigError, match=name):
        setattr(config, name, value)
    assert config == parallax.Config()


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: parallax.PSConfig(protocol="http"), "protocol must be one of grpc"),
        (lambda: parallax.PSConfig(local_aggregation=None), "local_aggregation must be True or False"),
        (lambda: parallax.MPIConfig("-x 'open"), "mpirun_options has an unclosed quote"),
        (lambda: parallax.MPIConfig(["-np", 3]), "mpirun_options must be a string or a list"),
        (lambda: parallax.CommunicationConfig(parallax.MPIConfig()), "ps_config must be a parallax.PSConfig"),
        (lambda: parallax.CheckPointConfig("folder"), "ckpt_dir='folder' needs save_ckpt_steps or save_ckpt_secs"),
        (lambda: parallax.CheckPointConfig("folder", 0), "save_ckpt_steps must be an integer of at least 1"),
        (lambda: parallax.CheckPointConfig("folder", None, -1), "save_ckpt_secs must be a number of seconds above 0"),
        (lambda: parallax.ProfileConfig("folder"), "either profile_steps or profile_range"),
        (lambda: parallax.ProfileConfig(profile_steps=[1]), "needs profile_dir"),
        (lambda: parallax.ProfileConfig("folder", [1], (1, 2)), "either profile_steps or profile_range"),
        (lambda: parallax.ProfileConfig("folder", ["1"]), "profile_steps must be a list"),
        (lambda: parallax.ProfileConfig("folder", None, (5, 5)), "profile_range must be"),
        (lambda: parallax.ProfileConfig("folder", [1], None, -1), "profile_worker must be an integer of at least 0"),
    ],
)
def test_parts_are_checked_where_they_are_built(build, said):
    with pytest.raises(parallax.ConfigError, match=said):
        build()


def test_steps_and_workers_of_a_profile():
    some = parallax.ProfileConfig("folder", [2, 5], None, 1)
    assert [(s, r) for s in range(7) for r in range(2) if some.traces(s, r)] == [(2, 1), (5, 1)]
    span = parallax.ProfileConfig("folder", profile_range=(2, 4))
    assert [s for s in range(6) if span.traces(s, 0)] == [2, 3]
    assert not parallax.ProfileConfig().traces(0, 0)
    assert parallax.ProfileConfig(profile_dir=None, profile_steps=[]) == parallax.ProfileConfig()


def test_records_and_mappings_of_variables_are_one():
    config = parallax.Config(
        variables={"emb": parallax.Variable("ps", partitions=4), "w": parallax.Variable("allreduce")},
        routes={"emb": "ps"},
        touched_rows={"emb": 7, "other": 2},
    )
    assert config.of_variables("route") == {"emb": "ps", "w": "allreduce"}
    assert config.of_variables("partitions") == {"emb": 4}
    assert config.of_variables("touched_rows") == {"emb": 7, "other": 2}
    constraints = constraints_of(config)
    assert (constraints.routes, constraints.partitions) == ({"emb": "ps", "w": "allreduce"}, {"emb": 4})


def test_a_record_and_a_mapping_that_say_different_things_are_refused():
    message = r"variables\['emb'\].route is 'ps', but routes\['emb'\] is 'alltoall'. Set only one"
    records = {"emb": parallax.Variable("ps")}
    with pytest.raises(parallax.ConfigError, match=message):
        parallax.Config(variables=records, routes={"emb": "alltoall"})
    config = parallax.Config(routes={"emb": "alltoall"})
    with pytest.raises(parallax.ConfigError, match=message):
        config.variables = records
    config.routes = {}
    config.variables = records
    config.routes["emb"] = "alltoall"  # in place: seen by the call
    with pytest.raises(parallax.ConfigError, match=message):
        config.of_variables("route")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"route": "ring"}, "route must be one of allreduce, allgather, alltoall, ps, got 'ring'"),
        ({"partitions": 0}, "partitions must be an integer of at least 1"),
        ({"touched_rows": 1.5}, "touched_rows must be an integer of at least 1"),
    ],
)
def test_a_record_of_a_variable_is_checked_where_it_is_built(values, message):
    with pytest.raises(parallax.ConfigError, match=message):
        parallax.Variable(**values)


def test_a_mapping_that_was_changed_in_place_is_checked_by_the_call():
    config = parallax.Config(routes={"emb": "alltoall"})
    again = copy.deepcopy(config)
    assert again == config
    again.routes["emb"] = 3
    assert config.routes == {"emb": "alltoall"}
    with pytest.raises(parallax.ConfigError, match="routes must map variable names to str"):
        parallax.parallel_run(None, parallax_config=again)


def test_what_has_no_effect_is_said_in_a_line_each():
    ps = parallax.PSConfig("grpc+verbs", False, False, False, False)
    mpi = parallax.MPIConfig(use_allgatherv=True)
    config = parallax.Config(communication_config=parallax.CommunicationConfig(ps, mpi))
    lines = list_ineffective_settings(config)
    words = ("grpc+verbs", "replicate_variables", "among_servers", "between_workers", "use_allgatherv")
    assert len(lines) == 5 and all(word in line for word, line in zip(words, lines, strict=True))


def test_the_worker_to_be_traced_must_be_one_of_the_job():
    with tf.Graph().as_default() as graph:
        loss = tf.square(tf.get_variable("w", []) - tf.placeholder(tf.float32, []))
        tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    config = parallax.Config(workers=2, profile_config=parallax.ProfileConfig("folder", [1], None, 2))
    with pytest.raises(parallax.ConfigError, match="profile_worker must be a worker of the job, from 0 to 1, got 2"):
        parallax.parallel_run(graph, parallax_config=config)


@pytest.mark.parametrize(
    ("level", "shown"), [("", ["info", "error"]), ("40", ["error"]), ("error", ["error"]), ("debug", None)]
)
def test_the_level_of_the_log_comes_from_the_environment(level, shown):
    code = "import parallax\nfor word in ('debug', 'info', 'error'): getattr(parallax.log, word)('%s said', word)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PARALLAX_LOG_LEVEL": level, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    lines = [f"PARALLAX {w.upper()}: {w} said" for w in shown or ("debug", "info", "error")]
    assert (done.returncode, done.stderr.splitlines()) == (0, lines)


def test_a_level_that_is_none_is_refused_by_the_call(monkeypatch):
    monkeypatch.setenv("PARALLAX_LOG_LEVEL", "loud")
    with pytest.raises(parallax.ConfigError, match="LOG_LEVEL must be a number or one of"):
        parallax.parallel_run(None)
