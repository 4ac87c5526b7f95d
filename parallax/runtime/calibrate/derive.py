"""`parallax calibrate --from`: writes the profile of hosts that do not exist yet; nothing is started."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from parallax.analysis.whatif.derive_profile import NewHost, derive_profile
from parallax.base.errors import ConfigError
from parallax.cluster.machines import local_cluster
from parallax.cluster.profile_files import check_writable, save_profile
from parallax.cluster.profiles import ClusterProfile
from parallax.cluster.resource_file import parse_resource_file
from parallax.report.show import show
from parallax.runtime.calibrate.table import profile_table
from parallax.settings.environment import visible_gpus


def derive(resource: str | None, calibrations: Sequence[ClusterProfile], output: str, shares_cores: bool) -> int:
    """Writes the profile of the hosts of a resource file, with the bandwidths given there.

    Args:
        resource: the resource file.
        calibrations: measurements of other hosts.
        output: the file to write.
        shares_cores: whether the hosts share processor cores as the calibrated ones do.

    Returns:
        The exit status, 0.

    Raises:
        ParallaxError: there is no resource file, it or the output is invalid, or calibrations do not suffice.
    """
    if resource is None:
        raise ConfigError("--from derives a profile for the hosts of a resource file. Name one with -r FILE.")
    check_writable(Path(output))
    hosts = parse_resource_file(resource, local_cluster(None, visible_gpus()).hosts[0]).hosts
    profile = derive_profile(calibrations, [NewHost(h.address, h.link_bytes_per_s) for h in hosts], shares_cores)
    save_profile(profile, Path(output))
    show(profile_table(profile))
    return 0
