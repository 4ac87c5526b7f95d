"""The session in which workers execute the steps that a script's own loop calls.

It stays open from step to step. It is opened again when a step is called for the first time, to include that step, and
when another call has used the workers in between, with all steps so far. Each time it starts from the values of the
script's variables. So any number of steps, of functions and of models, trains the same variables. Steps that can no
longer be called are left out then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary, ref

import tensorflow as tf

from parallax.base.status_line import show_status, status_line
from parallax.base.types import ConcreteFunction, Nest, Value, Variable
from parallax.entry import call as calls
from parallax.functions.remote.driven_workers import ReservedWorkers, reserved_workers
from parallax.functions.remote.remote_steps import RemoteSteps
from parallax.functions.tracing.results import add_summaries, mark_results
from parallax.functions.tracing.step_graph import GraphStep, StepGraph, StepVariable, unique_name
from parallax.functions.tracing.summaries import StepSummaries
from parallax.functions.tracing.traced_values import take_values
from parallax.functions.tracing.written_variables import check_sums
from parallax.functions.variables import TrainedVariables
from parallax.runtime.driver_channel import ChannelClosed
from parallax.runtime.launcher.restarts.waiting_job import use_until_needed
from parallax.settings.config import Config
from parallax.settings.environment import settings
from parallax.settings.merge import merge_settings


@dataclass(frozen=True, eq=False)
class LoopStep:
    """A step that a script's loop calls, as traced by TensorFlow.

    Attributes:
        name: its scope in a graph.
        concrete: returns (results, values of the variables of metrics, values of summaries).
        variables: the variables that it reads, by names that are unique in it.
        metrics: the tf.Variables of metrics, in order.
        examples: the number of a worker's examples of each tensor of a batch; 0 if unknown.
        full: the usual length of the global batch; 0 if unknown.
        rules: how the workers' values of each result are combined, flat (tracing/results.py).
        summaries: those that it writes.
        whole: indices of its flat arguments whose length differs from the batch's, and which are passed in full.
        has_length: as for `StepGraph.add`.
    """

    name: str
    concrete: ConcreteFunction
    variables: Sequence[StepVariable]
    metrics: Sequence[Variable]
    examples: int | Sequence[int]
    full: int
    rules: tuple[str, ...]
    summaries: StepSummaries
    whole: frozenset[int] = frozenset()
    has_length: bool = False


class OpenLoop(NamedTuple):
    """An open session.

    Attributes:
        running: its steps.
        variables: the script's.
        steps: the steps in the graph.
        rules: how the workers' values of each of their results are combined, flat.
    """

    running: RemoteSteps
    variables: TrainedVariables
    steps: WeakKeyDictionary[LoopStep, GraphStep]
    rules: WeakKeyDictionary[LoopStep, tuple[str, ...]]


class ScriptLoop:
    """The steps that a script's own loop calls, and their session.

    Args:
        config: settings.
        resource: a resource file; None for workers on this host.
    """

    def __init__(self, config: Config, resource: str | Path | None) -> None:
        self._config, self._resource = config, resource
        self._number = calls.next_call()
        self._steps: list[ref[LoopStep]] = []
        self._stack = ExitStack()
        self._open: OpenLoop | None = None

    def add(self, trace: Callable[[], LoopStep], instead_of: Collection[LoopStep] = ()) -> LoopStep:
        """Adds a step, and has the workers open a session with all steps; missing workers start concurrently.

        Args:
            trace: returns the step.
            instead_of: steps that are no longer called.

        Raises:
            JobEnded: in a process with a purpose other than training, such as `parallax plan`.
            JobFailed: the workers have failed, and have reported why.
            ParallaxError: before anything is opened, as `parallel_run`.
        """
        with status_line(True), ExitStack() as stack:
            launches = calls.is_launching()
            reserved = self._reserve(stack) if launches and self._open is None else None
            show_status("tracing the step")
            step = trace()
            steps = [one for one in self._callable_steps() if one not in instead_of]
            step = replace(step, name=unique_name(step.name, {one.name for one in steps}))
            if not launches:
                graph = graph_of([*steps, step]).graph
                calls.perform_here(self._number, graph, self._config, self._resource)
            before, self._steps = self._steps, [ref(one) for one in (*steps, step)]
            del steps
            try:
                self._open_session(reserved or self._reserve(stack), stack)
            except BaseException:
                self._steps = before
                raise
        return step

    def session(self) -> OpenLoop:
        """The session, which is opened again if another call has ended it.

        Raises:
            JobFailed: the workers have failed, and have reported why.
            ParallaxError: before anything is opened, as `parallel_run`.
        """
        if self._open is None:
            with status_line(True), ExitStack() as stack:
                self._open_session(self._reserve(stack), stack)
        assert self._open is not None, "it was opened"
        return self._open

    def run(self, step: LoopStep, batch: Nest) -> tuple[Nest, list[Value]]:
        """Runs a step on a global batch, on the workers.

        Args:
            step: returned by `add`.
            batch: its flat arguments.

        Returns:
            The structure of its results, tensors of the graph, and the value of each, flat.

        Raises:
            JobFailed: the workers have failed, and have reported why.
        """
        opened = self.session()
        running, variables, made = opened.running, opened.variables, opened.steps[step]
        results, parts, summaries = made.fetches
        result_tensors = [one for one in tf.nest.flatten(results) if one is not None]
        with self.guard():
            variables.flush()
            share, fetches = running.pack_part(batch, step.whole), [*result_tensors, *summaries]
            wait = running.start(made, share, fetches, parts, opened.rules[step])
            variables.invalidate()
            fetched: list[Value] = []

            def values() -> tuple[list[Value], dict[str, Value]]:
                both = wait()
                fetched.extend(both[len(parts) :])
                return both[: len(parts)], {}

            variables.sums.follow(variables.numbers[step.name], values)
            variables.sums.latest.arrive()
        step.summaries.write(fetched[len(result_tensors) :])
        return results, fetched[: len(result_tensors)]

    def refresh_variables(self) -> None:
        """Copies the trained values to the script's variables."""
        if self._open is not None:
            self._open.variables.mirrors.refresh_all()

    @contextmanager
    def guard(self) -> Iterator[None]:
        """A context for requests to workers; a failure of the workers ends the session.

        Raises:
            JobFailed: the workers have failed, and have reported why.
        """
        try:
            yield
        except ChannelClosed:
            opened, self._open = self._open, None
            if opened is not None:
                opened.variables.fall_back()
                opened.variables.release()
            self._stack.pop_all().__exit__(*sys.exc_info())
            raise

    def end(self, is_last: bool = False) -> None:
        """Ends the session, if it is open, and copies its values to the script's variables.

        Args:
            is_last: whether the variables will not be read again.

        Raises:
            JobFailed: the workers have failed, and have reported why.
        """
        opened = self._open
        if opened is None:
            return
        if not is_last:
            with self.guard():
                values = opened.variables.values(merge_settings(self._config, settings()).tables)
        self._open = None
        opened.variables.release()
        if not is_last:
            take_values(opened.variables.by_name, values)
        self._stack.pop_all().close()

    def _callable_steps(self) -> list[LoopStep]:
        """The steps that can still be called."""
        return [step for one in self._steps if (step := one()) is not None]

    def _reserve(self, stack: ExitStack) -> ReservedWorkers:
        return stack.enter_context(reserved_workers(self._number, self._config, self._resource))

    def _open_session(self, reserved: ReservedWorkers, stack: ExitStack) -> None:
        """Opens a session on all steps; `stack` closes it if opening fails."""
        graph, steps, rules = _graph_of(self._callable_steps())
        names = {id(one.variable): one.name for one in graph.list_variables()}
        metrics = {one.name: one.metrics for one in steps}
        reset = graph.reset(dict.fromkeys(names[id(v)] for of in metrics.values() for v in of if id(v) in names))
        by_name = {made.name: made for made in steps.values()}
        running = stack.enter_context(reserved.session(graph, by_name, self._config))
        variables = TrainedVariables(running, metrics, names, reset, self.guard)
        self._open = OpenLoop(running, variables, steps, rules)
        self._stack = stack.pop_all()
        calls.count_job()
        use_until_needed(self)


def graph_of(steps: Sequence[LoopStep]) -> StepGraph:
    """The graph of several steps."""
    return _graph_of(steps)[0]


def _graph_of(
    steps: Sequence[LoopStep],
) -> tuple[StepGraph, WeakKeyDictionary[LoopStep, GraphStep], WeakKeyDictionary[LoopStep, tuple[str, ...]]]:
    """One graph of several steps, the steps in it, and the rules by which their results are combined."""
    sums = [variable for one in steps for variable in one.metrics]
    check_sums([one.concrete.graph for one in steps], sums)
    graph = StepGraph(_merged_variables(steps), sums=sums)
    made: WeakKeyDictionary[LoopStep, GraphStep] = WeakKeyDictionary()
    rules: WeakKeyDictionary[LoopStep, tuple[str, ...]] = WeakKeyDictionary()
    for one in steps:
        graph_step = graph.add(
            one.name, one.concrete, True, one.examples, one.full, whole=one.whole, has_length=one.has_length
        )
        results, parts, summaries = graph_step.fetches
        rules_of_all = add_summaries(one.rules, summaries)
        (results, summaries), rules[one] = mark_results(graph.graph, (results, summaries), rules_of_all)
        made[one] = replace(graph_step, fetches=(results, parts, summaries))
    return graph, made, rules


def _merged_variables(steps: Sequence[LoopStep]) -> list[StepVariable]:
    """The variables of all steps, each with a unique name."""
    variable_by_id: dict[int, StepVariable] = {}
    names: set[str] = set()
    for one in (variable for step in steps for variable in step.variables):
        known = variable_by_id.get(id(one.variable))
        if known is not None:
            variable_by_id[id(one.variable)] = replace(known, trainable=known.trainable or one.trainable)
            continue
        name = unique_name(one.name, names)
        names.add(name)
        variable_by_id[id(one.variable)] = replace(one, name=name)
    return list(variable_by_id.values())


_loops: dict[tuple[str, str], ScriptLoop] = {}
"""Loops by their settings and resource file."""


def loop_for(config: Config, resource: str | Path | None) -> ScriptLoop:
    """The loop of this script with these settings."""
    key = repr(config), str(resource)
    if key not in _loops:
        _loops[key] = ScriptLoop(config, resource)
    return _loops[key]
