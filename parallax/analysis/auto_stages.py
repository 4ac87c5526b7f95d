"""Plans a model in stages with what was measured, and decides whether it is cut, and into how many stages.

With `stages="auto"` all plans are compared at one global batch, which W workers with the whole model process, or W / P
replicas, each with P times the examples. Stages are chosen where no plan without them fits into memory, or where the
best of those takes 1.2 times as long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from parallax.analysis.cut.op_costs import BYTES_PER_S, OPS_PER_S
from parallax.analysis.cut.plan_stages import get_graph_cut, plan_in_stages
from parallax.analysis.cut.stage_cut import CutRates
from parallax.analysis.planner import MEASURE, make_plan
from parallax.analysis.reading.capture import CapturedGraph
from parallax.analysis.search.predict_plan import step_seconds
from parallax.analysis.timing.step_time import derive_step_load
from parallax.analysis.whatif.simulate import changed_constraints, changed_model, changed_spec
from parallax.analysis.whatif.stage_memory import check_room, list_process_memory, measure_stages
from parallax.analysis.whatif.stage_times import host_loads, predict_stages
from parallax.base.errors import NotEnoughMemory, PlanError
from parallax.cluster.plan_inputs import PlanInputs
from parallax.graph.spec import GradientSource, GraphSpec
from parallax.plans.plan import Layout, Plan, PlanConstraints
from parallax.plans.prediction import Prediction
from parallax.plans.what_if import WhatIf
from parallax.report.text import bytes_text, ms_text, pluralize

Planner = Callable[[GraphSpec, Layout, PlanConstraints, PlanInputs], Plan]

PAYS_FROM = 1.2
"""The least ratio of a step without stages to one with stages at which stages are chosen: predictions err by 10 %."""
_NO_LIMIT = 1 << 60
_SLOWEST, _FASTEST, _HALVINGS = 1 / 1024, 1024.0, 24


@dataclass(frozen=True, slots=True)
class StagedGraph:
    """A graph that may be cut, and what is known of its job.

    Attributes:
        captured: the graph.
        spec: its variables.
        sources: where gradients leave autodiff.
        layout: all workers.
        constraints: the user's requirements.
        measured: the profiles.
        examples: of a worker's batch in a run; 0 where they are unknown.
        make: plans a graph for workers that have the whole model, and proves that the plan can be executed.
    """

    captured: CapturedGraph
    spec: GraphSpec
    sources: tuple[GradientSource, ...]
    layout: Layout
    constraints: PlanConstraints
    measured: PlanInputs
    examples: int
    make: Planner

    def plan(self, stages: int | Sequence[str], batch: float = 1.0, make: Planner | None = None) -> Plan:
        """The plan with these stages, and its prediction where times are known.

        Consecutive workers form a replica, or have the same stage if a step is shorter then: by its seconds, else by
        the bytes of the busiest link.

        Args:
            stages: how many, or where they end.
            batch: the examples of a replica's micro-batch, divided by those of a run of the graph as it was built.
            make: makes the plan of the replicas; None for `self.make`.

        Raises:
            PlanError: there is no such plan.
        """
        found, refused = [], None
        for is_by_stage in (False, True) if self._has_two_orders(stages) else (False,):
            try:
                found.append(self._plan(stages, batch, make, is_by_stage))
            except NotEnoughMemory as error:
                refused = refused or error
        if refused is not None and not found:
            raise refused

        def order(plan: Plan) -> tuple[float, int]:
            loads = host_loads(plan, self.examples * batch) if len(found) > 1 else ()
            return plan.prediction.step_s or 0.0, max((max(one.out_bytes, one.in_bytes) for one in loads), default=0)

        return min(found, key=order)

    def _has_two_orders(self, stages: int | Sequence[str]) -> bool:
        """Whether it matters which workers form a replica, and whether the better order can be told."""
        count = stages if isinstance(stages, int) else len(stages) + 1
        hosts = self.layout.hosts
        return self.layout.num_workers > count > 1 and len(hosts) > 1 and max(hosts) > 1 and bool(self.examples)

    def _plan(self, stages: int | Sequence[str], batch: float, make: Planner | None, is_by_stage: bool) -> Plan:
        spec, constraints, measured = self.at_batch(batch)
        free = _without_limits(measured)

        def of_replicas(layout: Layout, terms: PlanConstraints) -> Plan:
            return (make or self.make)(spec, layout, replace(terms, memory_bytes=None), free)

        cut = (self.captured, spec, self.sources, self.layout, stages, constraints)
        plan = plan_in_stages(*cut, self.rates(batch), of_replicas, is_by_stage)
        plan = replace(plan, profiles=self.measured.used, prediction=Prediction(unknown=self.explain_unknown_times()))
        if not self.examples:
            return plan
        examples = self.examples * batch
        by_stage = measure_stages(plan, spec, constraints, measured)
        memory = list_process_memory(plan, by_stage, examples, self.base_bytes())
        check_room(memory, measured, constraints.memory_bytes)
        plan = replace(plan, prediction=replace(plan.prediction, memory=memory))
        plan = replace(plan, notes=(*plan.notes, *self._bytes_note(plan, examples, batch)))
        if plan.prediction.unknown:
            return plan
        if not derive_step_load(self.measured, self.layout).has_compute:
            plan = _with_note(
                plan,
                f"seconds of ops are assumed, by {OPS_PER_S / 1e9:g} Gflop/s a worker: measure them with `parallax "
                "profile --compute`, and pass --profile",
            )
        return predict_stages(plan, spec, constraints, measured, examples)

    def at_batch(self, batch: float) -> tuple[GraphSpec, PlanConstraints, PlanInputs]:
        """Variables, requirements and measurements for a worker's batch that is so many times as large."""
        what_if, model = WhatIf((1,), batch=batch), self.measured.model
        spec = changed_spec(self.spec, what_if)
        measured = replace(self.measured, model=model and changed_model(model, spec, what_if))
        return spec, changed_constraints(self.constraints, spec, what_if), measured

    def explain_unknown_times(self) -> str:
        """Why a step in stages has no predicted times; empty where it has."""
        if self.measured.cluster is None:
            return f"times unknown: {MEASURE}"
        return "" if self.examples else "times unknown: the graph leaves the batch open; set its length with examples"

    def whole_seconds(self, batch: float = 1.0) -> float | None:
        """Seconds of a run of the whole model: measured, or by the stated rate where the links were measured."""
        given = derive_step_load(self.measured, self.layout)
        if given.has_compute:
            return batch * given.compute_s + given.session_s
        if self.measured.cluster is None or not self.examples:
            return None
        found = get_graph_cut(self.captured, self.sources)
        return sum(found.member_seconds(CutRates(examples=batch * self.examples)))

    def rates(self, batch: float) -> CutRates:
        """The measurements by which cuts are compared."""
        run_s, cluster, model = self.whole_seconds(batch), self.measured.cluster, self.measured.model
        rate = BYTES_PER_S
        if cluster is not None and len(cluster.hosts) > 1:
            rate = min(min(host.out_bytes_per_s, host.in_bytes_per_s) for host in cluster.hosts)
        if run_s is None or not self.examples:
            return CutRates(op_seconds={} if model is None else model.op_seconds)
        return CutRates(run_s, 1 / rate, batch * self.examples, {} if model is None else model.op_seconds)

    def base_bytes(self) -> int:
        """A worker's memory besides variables and activations, as measured; else 0."""
        measured = 0 if self.measured.model is None else self.measured.model.memory_bytes or 0
        return max(0, measured - self.count_activation_bytes()) if measured else 0

    def count_activation_bytes(self) -> int:
        """Activations of a worker with the whole model, at their most."""
        found = get_graph_cut(self.captured, self.sources)
        (whole,) = found.measure_activations(found.cut_at([]))
        return whole.most * self.examples

    def _bytes_note(self, plan: Plan, examples: float, batch: float) -> tuple[str, ...]:
        """The bytes of the busiest host with and without stages, where there are several hosts."""
        if len(self.layout.hosts) < 2:
            return ()
        count = len(plan.stages)
        spec, constraints, _ = self.at_batch(batch / count)
        without = make_plan(spec, self.layout, replace(constraints, run_option="MPI", memory_bytes=None))
        whole = replace(plan.stages[0], variables=tuple(v.name for v in without.variables), sent_to=(0,))
        loads = host_loads(plan, examples), host_loads(replace(without, stages=(whole,)), 0.0)
        most = [max(max(load.out_bytes, load.in_bytes) for load in of) for of in loads]
        return (
            f"the link of the busiest host carries {bytes_text(most[0])} a step in {count} stages, and "
            f"{bytes_text(most[1])} without stages",
        )

    def choose(self) -> Plan:
        """The best plan, with or without stages, and a note on the better of the others.

        Raises:
            PlanError: nothing fits, or times are unknown.
        """
        if self.explain_unknown_times():
            raise PlanError(
                f"stages='auto' compares plans by seconds; {self.explain_unknown_times()}, or give a number of stages."
            )
        whole, refused = self._plan_whole()
        staged = self._best_staged()
        if staged is None:
            if whole is None:
                raise refused or NotEnoughMemory("No plan fits, with or without stages. Add hosts.")
            return _with_note(whole, "stages were not chosen: no cut of the model into stages fits the workers")
        count, step_s = len(staged.stages), staged.prediction.step_s or math.inf
        shape = f"{count} stages x {pluralize(staged.num_replicas, 'replica')}"
        whole_s = math.inf if whole is None else self._whole_step(whole)
        if whole is not None and whole_s < PAYS_FROM * step_s:
            flip = self._flip(whole, staged, _SLOWEST)
            where = f"stages are chosen below links of {flip}" if flip else "stages are chosen at no slower links"
            told = f"stages were not chosen: a step takes {ms_text(whole_s)} without, and {ms_text(step_s)} in {shape}"
            return _with_note(whole, f"{told}; {where}")
        chosen = self.plan(count, batch=float(count))
        if whole is None:
            return _with_note(chosen, f"{shape} were chosen, as no plan without stages fits: {refused}")
        flip = self._flip(whole, staged, _FASTEST)
        told = f"{shape} were chosen: a step takes {ms_text(step_s)}, and {ms_text(whole_s)} without stages"
        return _with_note(chosen, told + (f"; none are chosen above links of {flip}" if flip else ""))

    def _plan_whole(self) -> tuple[Plan | None, NotEnoughMemory | None]:
        """The plan without stages; None, and the reason, where it does not fit."""
        try:
            plan = self.make(self.spec, self.layout, self.constraints, self.measured)
            more = self.base_bytes() + self.count_activation_bytes()
            memory = [replace(one, model_bytes=more) for one in plan.prediction.memory if one.kind == "worker"]
            check_room(memory, self.measured, self.constraints.memory_bytes)
        except NotEnoughMemory as error:
            return None, error
        if plan.prediction.step_s is None:
            raise PlanError(f"stages='auto' compares plans by seconds; {plan.prediction.unknown}.")
        return plan, None

    def _best_staged(self) -> Plan | None:
        """The plan in stages with the shortest step; None where there is none."""
        found = []
        workers = self.layout.num_workers
        for count in (count for count in range(2, workers + 1) if workers % count == 0):
            try:
                found.append(self.plan(count, float(count), make_plan))
            except PlanError:  # a model of fewer ops, batches of fewer examples, or hosts of less memory
                continue
        return min(found, key=lambda plan: plan.prediction.step_s or math.inf, default=None)

    def _whole_step(self, plan: Plan) -> float:
        """The predicted step of a plan without stages, with compute."""
        known, run_s = plan.prediction, self.whole_seconds() or 0.0
        return (known.step_s or 0.0) + (0.0 if known.has_compute else plan.accumulate_steps * run_s)

    def _flip(self, whole: Plan, staged: Plan, end: float) -> str:
        """The rate of the slowest link at which the choice changes, up to a factor of all rates; empty without one."""
        cluster = self.measured.cluster
        if cluster is None or len(cluster.hosts) < 2:
            return ""
        count = len(staged.stages)

        def is_staged(factor: float) -> bool:
            rated = tuple(
                replace(h, out_bytes_per_s=factor * h.out_bytes_per_s, in_bytes_per_s=factor * h.in_bytes_per_s)
                for h in cluster.hosts
            )
            there = replace(self, measured=replace(self.measured, cluster=replace(cluster, hosts=rated)))
            step_s = step_seconds(self.spec, whole, self.layout, self.constraints, there.measured) or math.inf
            at_rate = replace(whole, prediction=replace(whole.prediction, step_s=step_s))
            spec, constraints, measured = there.at_batch(count)
            found = predict_stages(staged, spec, constraints, measured, self.examples * count)
            return self._whole_step(at_rate) >= PAYS_FROM * (found.prediction.step_s or 0.0)

        low, high = 1.0, end
        if is_staged(low) == is_staged(high):
            return ""
        for _ in range(_HALVINGS):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if is_staged(middle) == is_staged(1.0) else (low, middle)
        rate = 8 * low * min(min(host.out_bytes_per_s, host.in_bytes_per_s) for host in cluster.hosts)
        return f"{rate / 1e9:.3g} Gbit/s" if rate >= 1e9 else f"{rate / 1e6:.3g} Mbit/s"


def _without_limits(measured: PlanInputs) -> PlanInputs:
    """Measurements without memory: a worker has a stage of the model, and what the whole takes is no limit."""
    cluster, model = measured.cluster, measured.model
    if cluster is not None:
        cluster = replace(cluster, hosts=tuple(replace(host, memory_bytes=_NO_LIMIT) for host in cluster.hosts))
    return replace(measured, cluster=cluster, model=model and replace(model, memory_bytes=None))


def _with_note(plan: Plan, note: str) -> Plan:
    return replace(plan, notes=(*plan.notes, note))
