"""`python -m ops.mutants`: breaks parallax/ on purpose, one mutant at a time, and shows which the tests notice.

    python -m ops.mutants                 # all, one after the other
    python -m ops.mutants --only scale    # those whose names contain a word
    python -m ops.mutants --list          # only checks whether each still applies

A mutant replaces a text that must occur exactly once in its file. It is applied to a copy of the tree, in which the
tests run that must notice it. These tests must pass without it. The exit status is 1 if a mutant is not noticed or does
not apply.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from parallax.settings.arguments import CommandParser

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 900.0
COPIED = ("parallax", "tests", "ops", "examples", "docs", "pyproject.toml", "README.md", "Makefile")
EXACT = ("tests/exactness/test_exactness.py", "-k", "plain_graph")
MEETINGS = ("tests/exactness/test_transport.py",)
GRAPHS = ("tests/equality/test_in_memory.py", "-k", "every_graph_equals")
KEPT = ("tests/equality/test_in_memory.py", "-k", "several_batches")
UNEVEN = ("tests/keras/test_losses.py",)
SERVED = ("tests/equality/test_equality.py", "-k", "optimizer_on_servers")
OWNERSHIP = ("tests/graph/test_ownership.py",)
JOINED = ("tests/transform/test_fused_all_reduces.py",)
OVERLAPPING = ("tests/runtime/worker/test_overlapping.py",)
LAYOUTS = ("tests/analysis/layouts/test_rules.py",)
MIXED = ("tests/exactness/test_mixed_examples.py",)
LOOKUPS = ("tests/exactness/test_lookups_by_layouts.py",)
FULL_BATCHES = ("tests/transform/passes/test_full_batches.py",)
FED_CONSTANTS = ("tests/exactness/test_fed_constants.py",)
UNSTATED = ("tests/exactness/test_unstated_shapes.py",)
STALLS = ("tests/runtime/launcher/test_stall.py",)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A defect in a file, made on purpose.

    Attributes:
        name: describes the defect.
        file: below parallax/.
        old: text that occurs exactly once in the file.
        new: its replacement.
        tests: arguments of pytest for the tests that must notice it.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTANTS = (
    Mutant(
        "a worker's sum over its batch is taken for the sum of all workers",
        "analysis/layouts/rules/reductions.py",
        "return step.all_outputs(node, Partial(_KINDS[op]), dims)",
        "return step.all_outputs(node, REPLICATED, dims)",
        LAYOUTS,
    ),
    Mutant(
        "a worker's product that contracts its batch is taken for that of all workers",
        "analysis/layouts/rules/matrix_products.py",
        "if letter in result else SUM, dims)",
        "if letter in result else REPLICATED, dims)",
        LAYOUTS,
    ),
    Mutant(
        "a partial sum passes through a nonlinear op",
        "analysis/layouts/rules/elementwise.py",
        'LINEAR = ("Neg", "Conj", "Real", "Imag")',
        'LINEAR = ("Neg", "Conj", "Real", "Imag", "Square", "Sqrt")',
        (*MIXED, "-k", "losses"),
    ),
    Mutant(
        "a loop that begins with the second example visits the second of every worker",
        "analysis/layouts/loops/example_loops.py",
        "and self.find_step(head) == 1 and start.value == Length():",
        "and self.find_step(head) == 1:",
        ("tests/exactness/test_loops_over_examples.py", "-k", "second"),
    ),
    Mutant(
        "an iteration computes with its example's index among the worker's own",
        "transform/passes/layouts.py",
        "return tensor + tf.cast(first, tensor.dtype)",
        "return tensor + 0 * tf.cast(first, tensor.dtype)",
        ("tests/exactness/test_loops_over_examples.py", "-k", "weights by the index"),
    ),
    Mutant(
        "the maxima of segments are summed",
        "analysis/layouts/rules/reductions.py",
        "    return step.all_outputs(node, Partial(kind))",
        "    return step.all_outputs(node, SUM)",
        ("tests/exactness/test_sparse_batches.py", "-k", "maxima"),
    ),
    Mutant(
        "the numbers of examples start at 0 on every worker",
        "transform/passes/layouts.py",
        "first = self._firsts[one.node] = self._offset(one.part.batch) * factor",
        "first = self._firsts[one.node] = self._offset(one.part.batch) * factor * 0",
        (*MIXED, "-k", "losses"),
    ),
    Mutant(
        "a feed of a constant does not reach what has taken its place",
        "runtime/worker/session/resolved_run.py",
        "for copy in copies if name in fed",
        "for copy in () if name in fed",
        FED_CONSTANTS,
    ),
    Mutant(
        "a placeholder without a shape that ops sum is taken for a scalar",
        "analysis/reading/batches/unstated_shapes.py",
        "return next(iter(uses.partners)) if len(uses.partners) == 1 else None",
        "return ()",
        UNSTATED,
    ),
    Mutant(
        "a piece of a concatenation starts where the previous one does",
        "analysis/layouts/rules/concatenation.py",
        "        placed.append((first, first + length, one))\n        first = first + length",
        "        placed.append((first, first + length, one))",
        LOOKUPS,
    ),
    Mutant(
        "a mean of rows distributed by their values is weighted by examples",
        "analysis/layouts/rules/reductions.py",
        "dealt=None if fact.part.is_even else fact.part)",
        "dealt=None)",
        (*LOOKUPS, "-k", "dealt_out"),
    ),
    Mutant(
        "the maximum of a worker without examples is 0",
        "transform/building/batch_weights.py",
        '    if kind == "sum":\n        return tf.where(is_counted',
        '    if kind in ("sum", "max"):\n        return tf.where(is_counted',
        ("tests/exactness/test_interactions.py", "-k", "without_examples"),
    ),
    Mutant(
        "a replicated value is added once per worker",
        "transform/passes/layouts.py",
        "tf.constant(1 if self._editor.worker.rank == 0 else 0, tensor.dtype)",
        "tf.constant(1, tensor.dtype)",
        (*MIXED, "-k", "losses"),
    ),
    Mutant(
        "every worker takes the first worker's piece of a whole tensor",
        "transform/passes/layouts.py",
        "first = tf.minimum(self._offset(part.batch), weight.rows - local)",
        "first = tf.zeros_like(self._offset(part.batch))",
        (*MIXED, "-k", "features"),
    ),
    Mutant(
        "a sum is divided by the fixed batch length of a worker",
        "analysis/reading/batches/batch_constants.py",
        "        if found is not None and (batch := self.changes.find_batch(node.name)):",
        "        if False and (batch := self.changes.find_batch(node.name)):",
        (*MIXED, "-k", "fixed_batch"),
    ),
    Mutant(
        "an update depends on a predicate of each worker's own batch",
        "analysis/propagation/walk.py",
        'states.append(marked or self._predicate(f"{edge.node}:0", state))',
        "states.append(self.states.get(tensor, LOCAL))",
        ("tests/exactness/test_whole_batch.py", "-k", "computed_from_the_global and every"),
    ),
    Mutant(
        "a shorter batch is fed as a full one",
        "transform/passes/full_batches.py",
        "return None\n    led =",
        "pass\n    led =",
        FULL_BATCHES,
    ),
    Mutant(
        "ids of any sign are counted from the end",
        "transform/passes/ids_from_end.py",
        "and _number(view, zero) == 0 ",
        "",
        ("tests/transform/passes/test_ids_from_end.py",),
    ),
    Mutant(
        "rows are merged in their update only, although their norm is computed",
        "analysis/reading/lazy/updates.py",
        "while others := {node for node in exclusive if not update.union(exclusive).issuperset(view.users(node))}:",
        "while others := set[str]():",
        ("tests/analysis/reading/test_updates_of_rows.py",),
    ),
    Mutant(
        "a worker's share of an uneven batch is not applied",
        "transform/building/batch_weights.py",
        "return tf.math.multiply_no_nan(tensor, tf.cast(self.fraction, tensor.dtype))",
        "return tensor",
        UNEVEN,
    ),
    Mutant(
        "the scale of gathered rows is left out",
        "transform/passes/dense_and_gathered.py",
        "return values * tf.constant(1.0 / size if terms.synchronous and terms.average_sparse else 1.0, values.dtype)",
        "return values",
        EXACT,
    ),
    Mutant(
        "a dense gradient is a sum, not a mean",
        "transform/passes/dense_and_gathered.py",
        "return reducer.add_gradients(tensor, 1.0 / workers)",
        "return reducer.add_gradients(tensor)",
        EXACT,
    ),
    Mutant(
        "the parts of a fused all-reduce lose their scales",
        "transform/passes/fused_all_reduces.py",
        'fused.attr["scales"].list.f.extend(one.attr["scales"].list.f[0] for one in members)',
        'fused.attr["scales"].list.f.extend(1.0 for one in members)',
        JOINED,
    ),
    Mutant(
        "all-reduces of different levels are fused",
        "transform/passes/fused_all_reduces.py",
        "levels[node] = level",
        "levels[node] = 0",
        JOINED,
    ),
    Mutant(
        "an overlapping run does not wait for its variables",
        "transform/passes/turns.py",
        "return shared or str(node.name)",
        "return None",
        OVERLAPPING,
    ),
    Mutant(
        "the feeds of an overlapping run are not copied",
        "runtime/worker/session/overlapping.py",
        "copied = [_copy(values[place]) for place in ready.feeds]",
        "copied = [values[place] for place in ready.feeds]",
        OVERLAPPING,
    ),
    Mutant(
        "the indices of collected rows are not redirected",
        "transform/passes/dense_and_gathered.py",
        "        editor.redirect(collect.indices, indices)\n",
        "",
        EXACT,
    ),
    Mutant(
        "a row that only one worker touched is lost",
        "transform/passes/dense_and_gathered.py",
        "touched = tf.where(total[:, -1] > 0)[:, 0]",
        "touched = tf.where(total[:, -1] > 1)[:, 0]",
        EXACT,
    ),
    Mutant(
        "replicated rows are counted once per worker",
        "transform/passes/dense_and_gathered.py",
        "1.0 if editor.worker.rank == editor.worker.size - 1 else 0.0, rows.dtype",
        "1.0, rows.dtype",
        GRAPHS,
    ),
    Mutant(
        "a mean of rows is divided by the number of workers, not of rows",
        "transform/passes/dense_and_gathered.py",
        "return editor.reducer.all_reduce(total) / editor.reducer.all_reduce(weight)",
        "return editor.reducer.all_reduce(mean) / editor.worker.size",
        GRAPHS,
    ),
    Mutant(
        "a broadcast returns each worker's own value",
        "transform/building/collectives.py",
        'return mpi_ops.broadcast(tensor, 0, name="broadcast")',
        "return tensor",
        MEETINGS,
    ),
    Mutant(
        "a minimum is computed as a maximum",
        "transform/building/collectives.py",
        "kind=kind, scales",
        'kind={"min": "max"}.get(kind, kind), scales',
        MEETINGS,
    ),
    Mutant(
        "the scale of a float64 tensor is left out",
        "transform/building/collectives.py",
        "return all_reduce(tensor * scale, kind, 1.0, is_alike, among)",
        "return all_reduce(tensor, kind, 1.0, is_alike, among)",
        MEETINGS,
    ),
    Mutant(
        "a row is looked up at the wrong owner",
        "graph/ownership.py",
        "return self.pattern[row % self.slots]",
        "return self.pattern[(row + 1) % self.slots]",
        OWNERSHIP,
    ),
    Mutant(
        "the local numbers of rows are wrong",
        "graph/ownership.py",
        "return turn * self.shares[self.pattern[slot]] + self.places[slot]",
        "return turn * self.shares[self.pattern[slot]]",
        OWNERSHIP,
    ),
    Mutant(
        "an owner of an uneven share is a row short",
        "graph/ownership.py",
        "return turns * self.pattern.count(holder) + self.pattern[:rest].count(holder)",
        "return turns * self.pattern.count(holder)",
        OWNERSHIP,
    ),
    Mutant(
        "a rank that has ended is waited for",
        "runtime/launcher/failures/stall.py",
        "if isinstance(state, _InRun) or state.reason == _NOT_IN_RUN.reason:",
        "if isinstance(state, _InRun):",
        STALLS,
    ),
    Mutant(
        "a rank that never arrives is not a stall",
        "runtime/launcher/failures/stall.py",
        "for rank, _ in absent)) >= self.timeout_s:",
        "for rank, _ in absent)) >= 1000 * self.timeout_s:",
        STALLS,
    ),
    Mutant(
        "an update comes a batch late",
        "runtime/worker/session/accumulation.py",
        "if count < self.of_update - 1 else None",
        "if count < self.of_update else None",
        KEPT,
    ),
    Mutant(
        "a token is lost: a push does not wait for those of others",
        "transform/passes/on_servers.py",
        "waits = [*ops, *contributions, *self.editor.meetings.token(ops)]",
        "waits = [*ops, *contributions]",
        SERVED,
    ),
    Mutant(
        "all workers draw the same random numbers",
        "transform/passes/random_seeds.py",
        "rank = 0 if initial or worker.equal_randomness else worker.rank",
        "rank = 0",
        ("tests/transform/building/test_random_rows.py", "tests/transform/test_transform.py"),
    ),
    Mutant(
        "an all-reduce costs half its bytes",
        "analysis/routes/cost.py",
        "return RouteCost(ALLREDUCE, 2 * (workers - 1) * reduced_bytes(variable, wire) // workers, 1)",
        "return RouteCost(ALLREDUCE, (workers - 1) * reduced_bytes(variable, wire) // workers, 1)",
        ("tests/analysis/test_planner.py",),
    ),
    Mutant(
        "ranks that are far apart are named as one span",
        "report/text.py",
        "if spans and rank == spans[-1][1] + 1:",
        "if spans:",
        STALLS,
    ),
)


def problem_of(mutant: Mutant, root: Path) -> str:
    """Returns why a mutant does not apply; empty if it does."""
    found = (root / "parallax" / mutant.file).read_text(encoding="utf-8").count(mutant.old)
    return "" if found == 1 else f"{mutant.file} has the text to replace {found} times: {mutant.old.strip()}"


def fails(tests: tuple[str, ...], mutant: Mutant | None = None) -> bool:
    """Returns whether a test fails in a copy of the tree, with a mutant or without one.

    Raises:
        RuntimeError: the tests cannot be run at all.
    """
    with tempfile.TemporaryDirectory(prefix="parallax-mutant-") as name:
        copy = Path(name)
        for one in COPIED:
            made = shutil.copytree if (ROOT / one).is_dir() else shutil.copy
            made(ROOT / one, copy / one)
        if mutant is not None:
            file = copy / "parallax" / mutant.file
            file.write_text(file.read_text(encoding="utf-8").replace(mutant.old, mutant.new), encoding="utf-8")
        argv = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "--all-shares", *tests]
        environment = {**os.environ, "PYTHONPATH": str(copy)}
        done = subprocess.run(argv, cwd=copy, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pytest {' '.join(tests)}: exit status {done.returncode}\n{done.stdout[-2000:]}")
    return done.returncode == 1


def main(argv: list[str]) -> int:
    parser = CommandParser(prog="python -m ops.mutants", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", metavar="WORD", default="", help="mutants whose names contain the word")
    parser.add_argument("--list", action="store_true", help="check whether each applies; run no tests")
    options = parser.parse_args(argv)
    is_good, fails_anyway = True, cache(fails)
    for mutant in (m for m in MUTANTS if options.only in m.name):
        said = problem_of(mutant, ROOT)
        if not said and options.list:
            said = "applies"
        elif not said and fails_anyway(mutant.tests):
            said = f"the tests fail without it: {' '.join(mutant.tests)}"
        elif not said:
            said = "noticed" if fails(mutant.tests, mutant) else "NOT noticed"
        is_good &= said in ("applies", "noticed")
        print(f"{mutant.name}: {said}", flush=True)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
