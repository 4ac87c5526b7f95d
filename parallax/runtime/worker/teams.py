"""The workers of a job, and the teams into which they split, each with a communicator of its own."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence

from parallax.base.errors import TransformError
from parallax.base.types import Comm
from parallax.plans.sum_methods import HOST_FIRST, METHODS, SumRules, rules_for


class Teams:
    """The workers of a job, and the teams into which their communicator splits (parallax/native/teams.h).

    All workers must make it.

    Args:
        workers: communicator of all of them.
        host: the number of this worker's host.
        stage: which stage of the model it computes.
        replica: of which replica of the model.
        group: of which group of hosts it is.
    """

    def __init__(self, workers: Comm, host: int = 0, stage: int = 0, replica: int = 0, group: int = 0) -> None:
        from parallax.transform.building.all_to_all import library, native_ops

        native_ops()  # TensorFlow knows the ops of a library only if it has loaded it itself
        self._native = ctypes.CDLL(str(library()))
        self._native.parallax_open_sums.restype = ctypes.c_char_p
        self._number = self._native.parallax_form_teams(workers.py2f(), host, group, stage, replica)
        self._host = host
        self._workers_by_host: dict[str, tuple[int, ...]] = {}

    def find(self, among: str) -> Comm:
        """The communicator of a team that this worker is in; all workers must ask for it the first time."""
        from mpi4py import MPI

        return MPI.Intracomm.f2py(self._native.parallax_team(self._number, among.encode()))

    def _own(self, name: str, among: str) -> Comm:
        """The communicator of a team that a node meets in.

        Raises:
            TransformError: this worker is in no such team.
        """
        from mpi4py import MPI

        found = self.find(among)
        if found == MPI.COMM_NULL:
            raise TransformError(
                f"A node meets a team that its worker is in, but {name!r} meets {among!r}, and this worker is not in "
                "that. Leave the node out of its graph."
            )
        return found

    def is_open(self, name: str) -> bool:
        """Whether nodes of a name have a communicator."""
        return bool(self._native.parallax_is_open(name.encode()))

    def open(self, name: str, among: str) -> None:
        """Gives exchanges of a name one; all members of the team must call it.

        Raises:
            TransformError: this worker is in no such team.
        """
        self._own(name, among)
        self._native.parallax_open(name.encode(), self._number, among.encode())

    def open_sums(self, name: str, among: str, part_bytes: int, known: Sequence[SumRules]) -> str:
        """Gives all-reduces of a name one; as `open`.

        Args:
            name: of the node.
            among: the team.
            part_bytes: of a message that are in shared memory at a time, where the methods need any.
            known: the methods, as measured.

        Returns:
            Why this host's workers share no memory; empty where they do, or need not.

        Raises:
            TransformError: this worker is in no such team.
        """
        team = self._own(name, among)
        if among not in self._workers_by_host:
            hosts = team.allgather(self._host)
            self._workers_by_host[among] = tuple(Counter(hosts).values())
        wanted = rules_for(self._workers_by_host[among], known)
        if not any(rule.method in HOST_FIRST for rule in wanted):
            part_bytes = 0
        sizes = (ctypes.c_longlong * len(wanted))(*(rule.up_to_bytes for rule in wanted))
        methods = (ctypes.c_int * len(wanted))(*(METHODS.index(rule.method) for rule in wanted))
        why: bytes = self._native.parallax_open_sums(
            name.encode(), self._number, among.encode(), ctypes.c_longlong(part_bytes), len(wanted), sizes, methods
        )
        return why.decode(errors="replace")
