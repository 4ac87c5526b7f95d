"""The recipes of ops/slurm and ops/kubernetes, as far as they go without such a cluster."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import yaml

from parallax.cluster.resource_file import parse_resource_text
from parallax.runtime.launcher.failures.end_of_job import EXIT_PREEMPTED
from parallax.runtime.launcher.job import Job
from parallax.runtime.launcher.mpirun import Launcher, mpirun_argv
from parallax.settings.parts import CheckPointConfig

OPS = Path(__file__).parents[3] / "ops"
PLACED = [
    *("--mca", "orte_allocation_required", "0", "--mca", "orte_default_hostfile", "none"),
    *("--mca", "orte_default_dash_host", "none", "--mca", "rmaps", "round_robin"),
    *("--mca", "orte_timestamp_output", "0", "--mca", "orte_xml_output", "0"),
]
"""Only the resource file says where ranks run, and mpirun relays lines as they are."""


def command(resource, name, program):
    job = Job(("-m", "parallax.runtime.worker.main", *program), parse_resource_text(resource, name))
    return mpirun_argv(job, Launcher("/parallax/.venv/bin/mpirun", "/parallax/.venv/bin/python", "/parallax"))


def expected(hosts, program):
    start = ["/parallax/.venv/bin/mpirun", "--tag-output", "--bind-to", "none", "--map-by", "slot", "--oversubscribe"]
    start += ["--mca", "mpi_yield_when_idle", "1", "--mca", "ess_base_forward_signals", "SIGURG,28"]
    start += ["--mca", "opal_event_include", "epoll"]
    start += ["--mca", "btl_tcp_flags", "send,inplace", "--mca", "btl_tcp_eager_limit", "262144"]
    start += ["--mca", "btl_tcp_rndv_eager_limit", "262144", "--mca", "btl_tcp_max_send_size", "262144"]
    start += ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_alltoall_algorithm", "1"]
    start += ["--mca", "coll_tuned_alltoallv_algorithm", "1"]
    start += ["--prefix", "/parallax/.venv", "--mca", "plm", "rsh"]
    start += ["--mca", "ras", "^slurm,tm,lsf,gridengine,loadleveler,alps,simulator", *PLACED]
    start += ["--mca", "plm_rsh_agent", "ssh -o BatchMode=yes", "--mca", "plm_rsh_no_tree_spawn", "1"]
    start += ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self,vader"]
    for number, host in enumerate(hosts):
        start += [":"] if number else []
        start += ["-np", "2", "--host", f"{host}:2", "-wdir", "/parallax"]
        start += ["-x", "PARALLAX_JOB_ID", "-x", "LD_BIND_NOW", "-x", "CUDA_VISIBLE_DEVICES=-1"]
        start += ["/parallax/.venv/bin/python", "-m", "parallax.runtime.supervisor.agent"]
        start += ["--preload", "/parallax/.venv/lib/libparallax_preload.so", "--start", "fork", "--"]
        start += ["-m", "parallax.runtime.worker.main", *program]
    return start


def stand_in(folder, name, text):
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_the_batch_script_of_slurm_makes_a_resource_file_of_the_allocation(tmp_path):
    stand_in(tmp_path, "scontrol", '[ "$*" = "show hostnames node[1-2]" ] && printf "node1\\nnode2\\n"')
    stand_in(tmp_path, "parallax", f'cp "$3" {tmp_path}/resource; echo "$3" > {tmp_path}/path; echo "$@"; exit 3')
    allocation = {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NTASKS_PER_NODE": "2"}
    done = subprocess.run(
        ["bash", OPS / "slurm/train.sbatch", "train.py", "--name", "a b"],
        env={**os.environ, **allocation, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    path = (tmp_path / "path").read_text().strip()
    words = f"run -r {path} --preemption-grace-s 50 train.py --name a b\n"
    assert (done.returncode, done.stdout) == (3, words), done.stderr
    assert not Path(path).exists()
    found = command((tmp_path / "resource").read_text(), path, ("train.py",))
    assert found == expected(("node1", "node2"), ("train.py",))


def test_the_batch_script_of_slurm_passes_sigterm_on_and_comes_again_when_the_job_has_saved(tmp_path):
    stand_in(tmp_path, "scontrol", f'case "$1" in show) echo node1 ;; *) echo "$@" > {tmp_path}/requeued ;; esac')
    stand_in(tmp_path, "parallax", f"trap 'sleep 0.3; exit {EXIT_PREEMPTED}' TERM; echo up; sleep 30 & wait")
    allocation = {"SLURM_JOB_NODELIST": "node1", "SLURM_NTASKS_PER_NODE": "2", "SLURM_JOB_ID": "4711"}
    script = subprocess.Popen(
        ["bash", OPS / "slurm/train.sbatch", "train.py"],
        env={**os.environ, **allocation, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert script.stdout.readline() == "up\n"
        script.terminate()
        assert script.wait(20) == EXIT_PREEMPTED
    finally:
        with contextlib.suppress(ProcessLookupError):  # the stand-in's sleep may have ended, or never have begun
            os.killpg(script.pid, signal.SIGKILL)
        script.stdout.close()
    assert (tmp_path / "requeued").read_text() == "requeue 4711\n"
    assert "#SBATCH --signal=B:TERM@60\n" in (OPS / "slurm/train.sbatch").read_text()


def test_slurm_may_start_mpiruns_daemons_itself():
    text = 'hosts: ["node1 slots=2", "node2 slots=2"]\nmpirun_options: --mca plm slurm\n'
    assert text.strip().replace("\n", "\n    ") in (OPS / "slurm/README.md").read_text()
    found = command(text, "resource.yaml", ("train.py",))
    start = found[: found.index("-np")]
    assert start[start.index("--prefix") :] == [
        *("--prefix", "/parallax/.venv"),
        *PLACED[3:],  # an allocation is what Slurm itself starts daemons in
        *("--mca", "plm_rsh_agent", "ssh -o BatchMode=yes", "--mca", "plm_rsh_no_tree_spawn", "1"),
        *("--mca", "pml", "ob1", "--mca", "btl", "tcp,self,vader"),
        *("--mca", "plm", "slurm"),
    ]


def test_the_job_of_kubernetes_runs_from_the_operators_hostfile():
    job = yaml.safe_load((OPS / "kubernetes/mpijob.yaml").read_text())
    spec, name = job["spec"], job["metadata"]["name"]
    launcher = spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    program, *words = launcher["command"]
    assert (program, words[:3]) == ("/parallax/.venv/bin/parallax", ["run", "-r", "/etc/mpi/hostfile"])
    pods = [f"{name}-worker-{i}.{name}.default.svc" for i in range(spec["mpiReplicaSpecs"]["Worker"]["replicas"])]
    hostfile = "".join(f"{pod} slots={spec['slotsPerWorker']}\n" for pod in pods)
    assert command(hostfile, "/etc/mpi/hostfile", words[3:]) == expected(pods, ("train.py",))


def test_kubernetes_makes_a_pod_that_has_saved_anew_and_one_that_has_failed_not():
    job = yaml.safe_load((OPS / "kubernetes/job.yaml").read_text())["spec"]
    pod = job["template"]["spec"]
    rules = {rule["action"]: rule["onExitCodes"] for rule in job["podFailurePolicy"]["rules"] if "onExitCodes" in rule}
    assert (rules["Ignore"]["operator"], rules["Ignore"]["values"]) == ("In", [EXIT_PREEMPTED])
    assert (rules["FailJob"]["operator"], rules["FailJob"]["values"]) == ("NotIn", [0, EXIT_PREEMPTED])
    assert {rule["containerName"] for rule in rules.values()} == {pod["containers"][0]["name"]}
    mpijob = yaml.safe_load((OPS / "kubernetes/mpijob.yaml").read_text())["spec"]["mpiReplicaSpecs"]["Launcher"]
    for spec in (pod, mpijob["template"]["spec"]):
        assert CheckPointConfig().preemption_grace_s < spec["terminationGracePeriodSeconds"]
