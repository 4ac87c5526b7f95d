"""Runs a team's all-reduces by each method, as graphs of one rank: built and run like those of jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from parallax.base.types import ConfigProto
from parallax.plans.sum_methods import ANY_BYTES, SumRule, SumRules
from parallax.runtime.calibrate.sum_points import methods_of
from parallax.runtime.worker.session.channels import SHARED_BYTES, open_channels
from parallax.runtime.worker.session.direct import DirectRuns
from parallax.runtime.worker.teams import Teams
from parallax.transform.building import collectives

IN_A_RUN = 3
"""Number of all-reduces in a run, in sequence, as in a step."""

_ELEMENT_BYTES = 4


class SumRuns:
    """The all-reduces of one rank; every member of the teams must create it.

    Args:
        teams: of those that are measured together.
        scope: of its nodes.
        workers_by_host: of those that are measured together, in rank order.
    """

    def __init__(self, teams: Teams, scope: str, workers_by_host: Sequence[int]) -> None:
        graph = tf.Graph()
        self._ops: dict[str, tuple[str, str]] = {}
        with graph.as_default(), tf.device("/cpu:0"):
            for method in methods_of(workers_by_host):
                with tf.name_scope(f"{scope}/{method}/"):
                    values = given = tf.compat.v1.placeholder(tf.float32, [None])
                    for _ in range(IN_A_RUN):
                        values = collectives.all_reduce(values, is_alike=True)
                self._ops[method] = (values.op.name, given.name)
                open_channels(graph.as_graph_def(), teams, (_always(method, workers_by_host),), SHARED_BYTES)
        self._direct = DirectRuns(tf.compat.v1.Session(graph=graph, config=_options()))

    def runner(self, method: str, message_bytes: int) -> Callable[[], None]:
        """Returns a function that reduces IN_A_RUN messages of `message_bytes` bytes, one after the other."""
        op, placeholder = self._ops[method]
        feed = {placeholder: np.zeros(max(message_bytes // _ELEMENT_BYTES, 1), np.float32)}

        def run() -> None:
            while self._direct.run((op,), feed) is None:  # the first call only prepares the run
                pass

        return run


def _always(method: str, workers_by_host: Sequence[int]) -> SumRules:
    return SumRules(tuple(workers_by_host), (SumRule(ANY_BYTES, method),))


def _options() -> ConfigProto:
    return tf.compat.v1.ConfigProto(allow_soft_placement=True, device_count={"GPU": 0})
