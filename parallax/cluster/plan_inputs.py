"""Loads the profiles that a plan is made with, and checks that they belong to the job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from parallax.base.errors import PlanError
from parallax.cluster.profiles import (
    ClusterProfile,
    ModelProfile,
    TableProfile,
    cluster_profile_from_json,
    model_profile_from_json,
)
from parallax.plans.prediction import ProfileUsed


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """The inputs of a plan other than the graph and the layout.

    Attributes:
        cluster: the links; None if not measured.
        model: the steps' profile; None if not measured.
        cluster_name: of the file of `cluster`, for messages.
        model_name: of the file of `model`.
    """

    cluster: ClusterProfile | None = None
    model: ModelProfile | None = None
    cluster_name: str = ""
    model_name: str = ""

    @property
    def used(self) -> tuple[ProfileUsed, ...]:
        """The profiles, as recorded in the plan."""
        profiles = []
        if self.cluster is not None:
            profiles.append(ProfileUsed("cluster", self.cluster_name, self.cluster.fingerprint))
        if self.model is not None:
            profiles.append(ProfileUsed("model", self.model_name, self.model.fingerprint))
        return tuple(profiles)

    def table(self, name: str) -> TableProfile | None:
        """The profile of a variable that is looked up by row; None if there is none."""
        return None if self.model is None else self.model.table(name)

    def check_belongs_to(self, graph: str, hosts: int) -> None:
        """Refuses profiles of another graph or of another number of hosts.

        Args:
            graph: the graph's `model_key`.
            hosts: of the layout.

        Raises:
            PlanError: when one does not belong.
        """
        if self.cluster is not None and len(self.cluster.hosts) != hosts:
            raise PlanError(
                f"The cluster profile must be of the job's hosts: {self.cluster_name or 'this one'} has "
                f"{len(self.cluster.hosts)} hosts, but the job has {hosts}. Measure the job's hosts with "
                "`parallax calibrate`."
            )
        if self.model is not None and self.model.graph != graph:
            raise PlanError(
                f"The model profile was measured for another model: {self.model_name or 'this one'} is of model "
                f"{self.model.graph[:12]}, but the script built model {graph[:12]}. Trained variables, lookups and "
                "numbers of ids must be the same. Measure the model again."
            )

    def check_names(self, hosts: Sequence[str]) -> None:
        """Refuses a cluster profile of other hosts.

        Args:
            hosts: addresses as in the resource file, in its order.

        Raises:
            PlanError: when the profile's hosts differ, or are in another order.
        """
        measured = [] if self.cluster is None else [host.name for host in self.cluster.hosts]
        if measured and measured != list(hosts):
            raise PlanError(
                "The cluster profile must be of the job's hosts, in the order of the resource file: "
                f"{self.cluster_name or 'this one'} has {', '.join(measured)}, but the job has {', '.join(hosts)}. "
                "Measure the job's hosts with `parallax calibrate`."
            )


def read_measured(cluster_file: Path | str | None, model_file: Path | str | None) -> PlanInputs:
    """Reads the given profiles.

    Raises:
        PlanError: when a file cannot be read, or is no profile.
    """
    cluster = None if cluster_file is None else cluster_profile_from_json(file_text(cluster_file), str(cluster_file))
    model = None if model_file is None else model_profile_from_json(file_text(model_file), str(model_file))
    names = ("" if file is None else Path(file).name for file in (cluster_file, model_file))
    return PlanInputs(cluster, model, *names)


def file_text(file: Path | str) -> str:
    """The content of a profile's file.

    Raises:
        PlanError: when it cannot be read.
    """
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise PlanError(f"{file}: cannot read the profile: {reason}.") from error
