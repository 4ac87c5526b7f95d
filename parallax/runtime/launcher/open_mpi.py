"""Decides which Open MPI settings apply to a job.

The resource file says where processes start and what starts them. Open MPI's variables and parameter files may say
otherwise: those of a batch system's allocation, of an operator's pod, of a rank inside which a job is launched. These
are ignored. Settings of how ranks exchange messages apply, and so do all words of `mpirun_options`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MCA = "OMPI_MCA_"
"""Prefix of variables that set an Open MPI parameter."""

PASSED_ON = ("ess_base_forward_signals", "ess_hnp_forward_signals")
"""The parameter that lists additional signals that mpirun forwards to ranks; and its old name."""

# Variables by which processes find the launcher that started them: mpirun and Slurm's srun through PMIx or PMI. In
# mpirun's own environment, they would connect mpirun to that launcher.
_OF_A_PROCESS = ("PMIX_", "PMI_", "PMI2_", "PRTE_")
_OF_A_RANK = ("OMPI_", "ORTE_")
# Prefixes of parameters that select the hosts, the ranks on each, and the launch module: ORTE's frameworks, PMIx, and
# core binding. `pls` and `rds` are old names.
_LAUNCHING = (
    *("errmgr", "ess", "filem", "grpcomm", "iof", "odls", "orte_", "plm", "pls", "pmix", "ras", "rds", "regx"),
    *("rmaps", "rml", "routed", "rtc", "schizo", "state", "hwloc_base_bind", "hwloc_base_cpu"),
)
# Exceptions that do not affect hosts and ranks: ssh's options, folders for files, spellings of host names.
_LEAVING = (
    *("plm_rsh_args", "plm_rsh_delay", "plm_rsh_num_concurrent", "orte_keep_fqdn_hostnames", "orte_hostname_cutoff"),
    *("orte_tmpdir_base", "orte_local_tmpdir_base", "orte_remote_tmpdir_base", *PASSED_ON),
)
# Options that protect against parameter files, which only the command line overrides.
_OVERRIDES = {
    # No batch system's allocation is used.
    "ras": "^slurm,tm,lsf,gridengine,loadleveler,alps,simulator",
    "orte_allocation_required": "0",
    "orte_default_hostfile": "none",
    "orte_default_dash_host": "none",
    "rmaps": "round_robin",
    # The lines that mpirun relays must begin with the rank (supervisor/frames.py).
    "orte_timestamp_output": "0",
    "orte_xml_output": "0",
}


def parameters_of(options: Sequence[str]) -> dict[str, str]:
    """The MCA parameters that mpirun options set, with their values."""
    flags = ("--mca", "-mca", "--gmca", "-gmca")
    words = zip(options, options[1:], options[2:], strict=False)
    return {name: value for flag, name, value in words if flag in flags}


def launch_parameters(options: Sequence[str], agent: str) -> dict[str, str]:
    """The MCA parameters that make mpirun start the ranks on the hosts of the resource file.

    Args:
        options: the user's `mpirun_options`. A `plm` in them starts daemons as the user wants, in an allocation too.
        agent: the launch module of daemons: `rsh`, or `isolated` where there are none.
    """
    required = {"plm": agent, **_OVERRIDES}
    user_parameters = parameters_of(options)
    if "plm" in user_parameters:
        required = {name: value for name, value in required.items() if not name.startswith(("ras", "orte_allocation"))}
    return {name: value for name, value in required.items() if name not in user_parameters}


def filter_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables of mpirun's environment: without those that select hosts, ranks or the launch module."""
    begin = (*_OF_A_PROCESS, *(_OF_A_RANK if "OMPI_COMM_WORLD_RANK" in variables else ()))
    return {name: value for name, value in variables.items() if not name.startswith(begin) and not _is_of_launch(name)}


def _is_of_launch(variable: str) -> bool:
    name = variable.removeprefix(MCA)
    return variable != name and name.startswith(_LAUNCHING) and name not in _LEAVING and not name.endswith("_verbose")
