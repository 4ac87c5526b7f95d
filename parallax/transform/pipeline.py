"""From a captured graph and decisions to one worker's graph: the passes in order, then the checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parallax.decisions import Decisions
from parallax.graph_view import GraphView
from parallax.transform.check import check, check_exchanges
from parallax.transform.edit import Counter, Cut, Worker, open_editor
from parallax.transform.exchanges import exchange_rows
from parallax.transform.gradients import collect_rows, reduce_gradients
from parallax.transform.rows import gather_rows, slice_rows, spread_tables
from parallax.transform.seeds import set_seeds


@dataclass(frozen=True, slots=True)
class WorkerGraph:
    """What one worker runs.

    Attributes:
        graph_def: the changed graph; all of the user's names are in it.
        whole: tensor of local rows -> the tensor that has all rows, for fetches.
        held_by_row: tensors that hold local rows only.
        cuts: what is fed with nothing when a fetch does not need it.
        counters: what counts the exchanges.
        counter_initializers: ops that set the counters to zero.
        tables: variable ops whose values differ between workers because each holds its rows.
        local_variables: variable ops that each worker keeps for itself.
    """

    graph_def: Any
    whole: dict[str, str]
    held_by_row: frozenset[str]
    cuts: tuple[Cut, ...]
    counters: tuple[Counter, ...]
    counter_initializers: tuple[str, ...]
    tables: frozenset[str]
    local_variables: frozenset[str]


def transform(view: GraphView, decisions: Decisions, worker: Worker) -> WorkerGraph:
    """Makes the graph of one worker. Pure: the view is not changed, and no cluster or Horovod job is needed.

    Raises:
        TransformError: when the graph cannot be edited, or a promise does not hold afterwards.
    """
    editor = open_editor(view, worker)
    with editor.scratch.as_default():
        spread_tables(editor, decisions)
        reduce_gradients(editor, decisions)
        slice_rows(editor, decisions)  # after the broadcasts: a whole value that is fed is worker 0's, then cut
        exchange_rows(editor, view, decisions)
        collect_rows(editor, decisions)
        gather_rows(editor, decisions)
    changed = editor.finish()
    set_seeds(changed, frozenset(decisions.initial_random_ops), worker)
    check(changed, decisions, worker)
    check_exchanges(changed, decisions)
    return WorkerGraph(
        graph_def=changed,
        whole=dict(editor.whole),
        held_by_row=frozenset(decisions.held_by_row),
        cuts=tuple(editor.cuts),
        counters=tuple(editor.counters),
        counter_initializers=tuple(editor.counter_initializers),
        tables=frozenset(m for t in decisions.tables for m in t.members),
        local_variables=frozenset(decisions.local_variables),
    )
