"""Splits the workers of a job into teams, each with its own communicator."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence

from parallax.base.errors import TransformError
from parallax.base.types import Comm
from parallax.plans.sum_methods import HOST_FIRST, METHODS, SumRules, rules_for


class Teams:
    """The teams into which the workers of a job split (parallax/native/teams.h). Creating it is a collective operation.

    Args:
        workers: the communicator of all workers.
        host: the number of this worker's host.
        stage: the stage of the model that this worker computes.
        replica: the replica of the model to which this worker belongs.
        group: the group of hosts to which this worker belongs.
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
        """This worker's communicator in a team; the first call for a name is a collective operation of all workers."""
        from mpi4py import MPI

        return MPI.Intracomm.f2py(self._native.parallax_team(self._number, among.encode()))

    def _find_checked(self, name: str, among: str) -> Comm:
        """The communicator of the team of a node.

        Raises:
            TransformError: this worker is in no such team.
        """
        from mpi4py import MPI

        team = self.find(among)
        if team == MPI.COMM_NULL:
            raise TransformError(
                f"A worker must be in the team of each of its exchanges, but {name!r} is among {among!r}, and this "
                "worker is not in that team. Leave the exchange out of its graph."
            )
        return team

    def is_open(self, name: str) -> bool:
        """Whether nodes with a name have a communicator."""
        return bool(self._native.parallax_is_open(name.encode()))

    def open(self, name: str, among: str) -> None:
        """Opens the channel of the exchanges with a name; all members of the team must call it.

        Raises:
            TransformError: this worker is in no such team.
        """
        self._find_checked(name, among)
        self._native.parallax_open(name.encode(), self._number, among.encode())

    def open_sums(self, name: str, among: str, part_bytes: int, known: Sequence[SumRules]) -> str:
        """Opens the channel of the all-reduces with a name; all members of the team must call it.

        Args:
            name: the name of the node.
            among: the team.
            part_bytes: the part of a message that is in shared memory at a time, if the methods use shared memory.
            known: the measured methods.

        Returns:
            The reason why this host's workers share no memory; empty if they do, or need not.

        Raises:
            TransformError: this worker is in no such team.
        """
        team = self._find_checked(name, among)
        if among not in self._workers_by_host:
            hosts = team.allgather(self._host)
            self._workers_by_host[among] = tuple(Counter(hosts).values())
        rules = rules_for(self._workers_by_host[among], known)
        if not any(rule.method in HOST_FIRST for rule in rules):
            part_bytes = 0
        sizes = (ctypes.c_longlong * len(rules))(*(rule.up_to_bytes for rule in rules))
        methods = (ctypes.c_int * len(rules))(*(METHODS.index(rule.method) for rule in rules))
        why: bytes = self._native.parallax_open_sums(
            name.encode(), self._number, among.encode(), ctypes.c_longlong(part_bytes), len(rules), sizes, methods
        )
        return why.decode(errors="replace")
