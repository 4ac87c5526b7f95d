"""Program of every worker of the measuring job. Rank 0 reports the results to the launcher, one sealed line each.

Rounds iterate over all groups, and in each over all operations and sizes, so that a disturbance affects every point
once and the median over the rounds removes it. Horovod is shut down and initialised with the communicator of each group
in turn: within one process that takes some milliseconds, and a measurement of 2 or 4 members is that of a job of 2 or
4, including its agreement on ready tensors. (Subsets of hosts are the first ones of the resource file: all hosts are
assumed to be equal except for the rates of their links.) Ranks outside the group sleep meanwhile. In islands of several
hosts all this is within the first island, and the rate between islands is that of their first hosts.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from parallax.base.types import Comm
from parallax.plans.model_stages import WorkerGrid
from parallax.runtime.calibrate.links import link_rates
from parallax.runtime.calibrate.operations import Operations, operations_in_a_run
from parallax.runtime.calibrate.points import ACROSS, Group, Point, first_worker_by_host, groups_of, points_of
from parallax.runtime.calibrate.sum_points import SumTeam, drop_slow, methods_of, sizes_of, sum_teams
from parallax.runtime.calibrate.sum_runs import IN_A_RUN, SumRuns
from parallax.runtime.supervisor.sealed_files import sealed_value
from parallax.runtime.worker.barrier import wait_for_all
from parallax.runtime.worker.ranks import ProcessGroup, current_process_group
from parallax.runtime.worker.teams import Teams

QUICK, ISLANDS = "--quick", "--islands="

_ROUNDS, _QUICK_ROUNDS = 3, 2
_LINK_ROUNDS, _QUICK_LINK_ROUNDS = 3, 1
_PRODUCTS = 20
_MATRIX = np.full((128, 128), 1 / 128, np.float32)


def main() -> None:
    """Measures; the launcher has started this on all hosts."""
    members = current_process_group()
    islands = next((int(word.removeprefix(ISLANDS)) for word in sys.argv[1:] if word.startswith(ISLANDS)), 1)
    members.form_teams(WorkerGrid(1, members.size), islands)
    members.start()
    _Measurement(members, QUICK in sys.argv[1:]).run()


class _Measurement:
    """The measurement from the view of one rank."""

    def __init__(self, members: ProcessGroup, quick: bool) -> None:
        self.members = members
        self.workers = members.workers
        self.quick = quick
        hosts = members.parcel.hosts
        is_lead = members.rank in first_worker_by_host(hosts)
        made = self.workers.Split(0 if is_lead else 1, members.rank)
        self.leads = made if is_lead else None
        self.hosts = hosts[: members.replicas]  # of the first island, or all
        self.groups = groups_of(self.hosts, quick)

    def run(self) -> None:
        """Runs all measurements, in the same order on all ranks."""
        self._tell_hosts()
        rates = self._links()
        measured = [(group, points_of(group, self._rate(group, rates), self.quick)) for group in self.groups]
        rounds = _QUICK_ROUNDS if self.quick else _ROUNDS
        sums = sum_teams([self.hosts.count(host) for host in dict.fromkeys(self.hosts)], self.members.islands > 1)
        visits = rounds * sum(len(points) for _, points in measured)
        visits += sum(len(methods_of(team.workers_by_host)) for team in sums) * len(sizes_of(self.quick))
        self._report(kind="total", visits=visits)
        teams = [self._team(group) for group in self.groups]
        _horovod().shutdown()
        rank, hosts = self.members.rank, self.members.parcel.hosts
        operations = [
            Operations(group, team, rank, hosts[rank], self.members.target) if team is not None else None
            for group, team in zip(self.groups, teams, strict=True)
        ]
        seconds: dict[Point, list[float]] = {}
        slowdowns = []
        for number in range(rounds):
            for (_, points), team, own in zip(measured, teams, operations, strict=True):
                self._visit(points, team, own, number == 0, seconds)
            slowdowns.append(self._slowdown())
        for point, times in seconds.items():
            self._report(kind="sample", point=asdict(point), seconds=statistics.median(times))
        self._report(kind="slowdown", found=statistics.median(slowdowns))
        for own_sums in sums:
            self._sums(own_sums, rounds)

    def _sums(self, of: SumTeam, rounds: int) -> None:
        """Measures sums of a team by all methods, in turns; of the teams that do it at once the slowest counts."""
        from mpi4py import MPI

        comm = self.members.teams.find(of.among)
        runs = None
        if comm != MPI.COMM_NULL:
            teams = Teams(comm.Dup(), self.members.parcel.hosts[self.members.rank])
            runs = SumRuns(teams, f"parallax/sums/{of.among}", of.workers_by_host)
        methods = all_methods = methods_of(of.workers_by_host)
        for size in sizes_of(self.quick):
            times_by_method: dict[str, list[float]] = {}
            if runs is not None:
                runner_by_method = {method: runs.runner(method, size) for method in methods}
                for number in range(rounds):
                    for method, run in runner_by_method.items():
                        times_by_method.setdefault(method, []).append(seconds_of_run(run, comm, number == 0) / IN_A_RUN)
            self._wait_for_all()
            own = {method: statistics.median(some) for method, some in times_by_method.items()}
            everyone = [one for one in self.workers.allgather(own) if one]
            seconds_by_method = {method: max(one[method] for one in everyone) for method in methods}
            for method, seconds in seconds_by_method.items():
                report = {"workers_by_host": of.workers_by_host, "method": method, "message_bytes": size}
                self._report(kind="sum", seconds=seconds, **report)
            self._report(kind="visited", visits=len(all_methods))
            methods = drop_slow(size, seconds_by_method)

    def _tell_hosts(self) -> None:
        own = (len(os.sched_getaffinity(0)), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        everyone = self.workers.gather(own, 0)
        if everyone is not None:
            hosts = [everyone[lead] for lead in first_worker_by_host(self.members.parcel.hosts)]
            self._report(kind="hosts", found=hosts)

    def _links(self) -> list[tuple[float, float]]:
        """(sending, receiving) of each host, the median of several measurements; in islands, within these."""
        rates: list[tuple[float, float]] = []
        if self.leads is not None and self.leads.size > 1:
            own = self.leads.Split(self.members.island, self.leads.rank)
            mine = (0.0, 0.0)
            for island in range(self.members.islands):  # in turn: they may share a machine's cores
                if island == self.members.island:
                    mine = self._median_rates(own)[own.rank]
                wait_for_all(self.leads)
            rates = list(self.leads.allgather(mine))
            self._report(kind="links", found=rates)
            firsts = self.leads.Split(min(own.rank, 1), self.leads.rank)
            if self.members.islands > 1 and own.rank == 0:
                self._report(kind="between", found=min(map(min, self._median_rates(firsts))))
        self._wait_for_all()
        return list(self.workers.bcast(rates, 0))

    def _median_rates(self, comm: Comm) -> list[tuple[float, float]]:
        rounds = [link_rates(comm) for _ in range(_QUICK_LINK_ROUNDS if self.quick else _LINK_ROUNDS)]
        by_host = zip(*rounds, strict=True)
        return [(statistics.median(o for o, _ in one), statistics.median(i for _, i in one)) for one in by_host]

    def _rate(self, group: Group, rates: list[tuple[float, float]]) -> float | None:
        """The rate of the slowest link of a group across hosts."""
        if group.where != ACROSS:
            return None
        return min(min(rate) for rate in rates[: group.members])

    def _team(self, group: Group) -> Comm | None:
        """Communicator of this rank's team in a group; None when it is in none."""
        from mpi4py import MPI

        number = group.team_of(self.members.rank)
        made = self.workers.Split(MPI.UNDEFINED if number is None else number, self.members.rank)
        return None if number is None else made

    def _visit(
        self,
        points: tuple[Point, ...],
        team: Comm,
        operations: Operations | None,
        is_first: bool,
        seconds: dict[Point, list[float]],
    ) -> None:
        """Measures the points of a group once; of concurrent teams the slowest counts."""
        found = []
        if operations is not None:
            hvd = _horovod()
            hvd.init(comm=team)
            for point in points:
                found.append(
                    seconds_of_run(operations.runner(point), team, is_first) / operations_in_a_run(point.operation)
                )
            team.Barrier()
            hvd.shutdown()
        self._wait_for_all()
        everyone = self.workers.gather(found, 0)
        if everyone is not None:
            for point, times in zip(points, zip(*filter(None, everyone), strict=True), strict=True):
                seconds.setdefault(point, []).append(max(times))
        self._report(kind="visited", visits=len(points))

    def _slowdown(self) -> float:
        """The slowdown of a computation when all hosts compute, relative to one alone: the median over the hosts."""
        if self.leads is None or self.leads.size == 1:
            self._wait_for_all()
            return 1.0
        from mpi4py import MPI

        leads = self.leads
        alone = 0.0
        for turn in range(leads.size):
            wait_for_all(leads)
            if turn == leads.rank:
                alone = seconds_of_call(_compute)
        wait_for_all(leads)
        leads.Barrier()
        concurrent_s = leads.allreduce(seconds_of_call(_compute), MPI.MAX)
        slowdown = statistics.median(leads.allgather(concurrent_s / alone))
        self._wait_for_all()
        return float(slowdown)

    def _wait_for_all(self) -> None:
        """Waits for all workers without occupying a core."""
        wait_for_all(self.workers)

    def _report(self, **message: object) -> None:
        if self.members.rank == 0:
            sys.stdout.write(sealed_value(message).decode("ascii"))
            sys.stdout.flush()


def _horovod() -> Any:
    import horovod.tensorflow as hvd

    return hvd


def _compute() -> None:
    """A fixed product of small matrices, on one thread."""
    for _ in range(_PRODUCTS):
        np.einsum("ij,jk->ik", _MATRIX, _MATRIX)


if __name__ == "__main__":
    main()


_SAMPLE_S = 0.02  # a sample is at least so long
_MOST_RUNS = 50
_FIRST_RUNS = 2  # make connections and buffers


def seconds_of_run(run: Callable[[], None], team: Comm, is_first: bool) -> float:
    """Seconds of a run: the mean of some in a row, of the slowest member. What comes before them is not counted."""
    from mpi4py import MPI

    for _ in range(_FIRST_RUNS if is_first else 0):
        run()
    once_s = seconds_of_call(run)
    times = team.bcast(min(math.ceil(_SAMPLE_S / once_s), _MOST_RUNS), 0)
    team.Barrier()
    began_s = time.perf_counter()
    for _ in range(times):
        run()
    mine_s = (time.perf_counter() - began_s) / times
    return float(team.allreduce(mine_s, MPI.MAX))


def seconds_of_call(run: Callable[[], None]) -> float:
    """Seconds of one call here."""
    began_s = time.perf_counter()
    run()
    return time.perf_counter() - began_s
