"""A program as a list of statements, and the draft in which the grammar writes one.

A program is Python text that needs only TensorFlow and NumPy. A statement may name a substitute for its result, for
programs without it. So a shortened program still runs, and the shrinker needs no knowledge of the grammar.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field, replace
from typing import Any

_TOP = '''\
"""{title}

{how}
"""

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
F = tf.{dtype}
WORKERS, ROWS, OPEN_BATCH, CONTROL_FLOW_V2, OPTIMIZES = {workers}, {rows}, {is_open}, {v2}, {optimizes}


def feeds(rng, rows):
    """The batch of one worker."""
    return {{
{feeds}    }}


def build(rows):
    """Returns the ops to run in turn; `rows` is the batch size, or None for an open batch dimension."""
    v1.get_variable_scope().set_use_resource({resource})
{body}    return {result}
'''

OPTIMIZERS = (
    "GradientDescentOptimizer(RATE)",
    "GradientDescentOptimizer(RATE)",
    "MomentumOptimizer(RATE, 0.9)",
    "MomentumOptimizer(RATE, 0.9, use_nesterov=True)",
    "AdagradOptimizer(RATE)",
    "AdamOptimizer(RATE * 0.1)",
    "RMSPropOptimizer(RATE * 0.1)",
    "RMSPropOptimizer(RATE * 0.1, momentum=0.5, centered=True)",
    "FtrlOptimizer(RATE, l1_regularization_strength=0.001)",
    "AdadeltaOptimizer(RATE)",
)
"""Constructors in `tf.compat.v1.train`."""


@dataclass(frozen=True, slots=True)
class Statement:
    """Some lines of a program.

    Attributes:
        text: the lines.
        target: the name that they define, if it has a substitute.
        instead: its substitute in programs without the statement.
        taped: whether a gradient tape records it.
        is_kept: whether every program needs it.
        plain: the simplest lines that can replace it.
    """

    text: str
    target: str = ""
    instead: str = ""
    taped: bool = False
    is_kept: bool = False
    plain: str = ""

    def renamed(self, name: str, other: str) -> Statement:
        """Returns the statement with a name replaced."""
        word = re.compile(rf"\b{re.escape(name)}\b")
        return replace(
            self,
            text=word.sub(other, self.text),
            target=word.sub(other, self.target),
            instead=word.sub(other, self.instead),
        )


@dataclass(frozen=True, slots=True)
class Program:
    """A training graph, as text.

    Attributes:
        title: first line of its docstring.
        feeds: name of a placeholder -> expression of its values.
        statements: these build the graph.
        result: expression of the ops to run in turn.
        tape: whether a tape computes the gradients.
    """

    title: str
    workers: int
    feeds: tuple[tuple[str, str], ...]
    statements: tuple[Statement, ...]
    result: str = "[train]"
    dtype: str = "float64"
    rows: int = 6
    is_open: bool = True
    control_flow_v2: bool = True
    optimizes: bool = True
    resource: bool = True
    tape: bool = False

    def source(self, how: str = "Run by `python -m ops.exactness --script FILE`.") -> str:
        """Returns the text."""
        body = []
        inside = False
        for statement in self.statements:
            taped = self.tape and statement.taped
            if taped and not inside:
                body.append("    with tf.GradientTape() as tape:")
            inside = taped
            body.append(textwrap.indent(statement.text.strip("\n"), "        " if taped else "    "))
        return _TOP.format(
            title=self.title,
            how=how,
            dtype=self.dtype,
            workers=self.workers,
            rows=self.rows,
            is_open=self.is_open,
            v2=self.control_flow_v2,
            optimizes=self.optimizes,
            resource=self.resource,
            feeds="".join(f"        {name!r}: {values},\n" for name, values in self.feeds),
            body="".join(f"{lines}\n" for lines in body),
            result=self.result,
        )

    def without(self, number: int) -> Program:
        """Returns the program without one of its statements."""
        left_out, later = self.statements[number], self.statements[number + 1 :]
        if left_out.instead:
            later = tuple(s.renamed(left_out.target, left_out.instead) for s in later)
        return replace(self, statements=(*self.statements[:number], *later))


@dataclass
class Draft:
    """A program that is being written.

    Attributes:
        rng: random number generator.
        ids: (name, bound) of ids `[n]`.
        bags: (name, bound, columns) of ids `[n, columns]`.
        tables: (name, rows) of variables `[rows, 4]` that are looked up.
        rows: names of features `[n, 4]`.
        turns: the ops to run in turn.
        feeding: the op to run before each of these, if any.
    """

    rng: Any
    is_open: bool
    v2: bool
    resource: bool
    is_float32: bool
    tape: bool = False
    taped: bool = False
    statements: list[Statement] = field(default_factory=list)
    feeds: dict[str, str] = field(default_factory=dict)
    ids: list[tuple[str, int]] = field(default_factory=list)
    bags: list[tuple[str, int, int]] = field(default_factory=list)
    tables: list[tuple[str, int]] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    turns: list[str] = field(default_factory=lambda: ["train"])
    feeding: str = ""

    @property
    def result(self) -> str:
        """Expression of the ops to run in turn, each after the op that feeds its batch, if there is one."""
        return f"[{', '.join(op for turn in self.turns for op in (self.feeding, turn) if op)}]"

    def optimizer(self, rate: str) -> str:
        """Draws an optimizer of `tf.compat.v1.train`."""
        return str(self.pick(OPTIMIZERS)).replace("RATE", rate)

    def name(self, prefix: str) -> str:
        """Returns a new name."""
        self.counts[prefix] = self.counts.get(prefix, -1) + 1
        return f"{prefix}{self.counts[prefix]}"

    def add(self, text: str, target: str = "", instead: str = "", is_kept: bool = False, plain: str = "") -> str:
        """Writes a statement and returns its target."""
        text = textwrap.dedent(text).strip("\n")
        self.statements.append(Statement(text, target, instead, self.taped, is_kept, plain if plain != text else ""))
        return target

    def pick(self, options: Any) -> Any:
        """Draws one of some options."""
        return options[self.rng.randint(len(options))]

    def chance(self, share: float) -> bool:
        """Returns True with this probability."""
        return bool(self.rng.rand() < share)

    def weight(self, rows: int, columns: int) -> str:
        """Adds a dense variable; returns its name."""
        name = self.name("w")
        return self.add(f'{name} = v1.get_variable("{name}", [{rows}, {columns}], F)', name)

    def table(self) -> tuple[str, int]:
        """Draws a variable to look up, an existing or a new one; returns its name and rows."""
        if self.tables and self.chance(0.4):
            name, rows = self.tables[self.rng.randint(len(self.tables))]
            return name, rows
        name, rows = self.name("emb"), int(self.pick((11, 8, 13)))
        self.add(f'{name} = v1.get_variable("{name}", [{rows}, 4], F)', name)
        self.tables.append((name, rows))
        return name, rows

    def looked_up(self) -> tuple[str, str]:
        """Draws a table, and ids `[n]` of it."""
        table, rows = self.table()
        ids, bound = self.ids[self.rng.randint(len(self.ids))]
        return table, ids if bound <= rows else f"{ids} % {rows}"

    def bag(self) -> tuple[str, str, int]:
        """Draws a table and ids `[n, columns]` of it; returns these and the columns."""
        table, rows = self.table()
        ids, bound, columns = self.bags[self.rng.randint(len(self.bags))]
        return table, ids if bound <= rows else f"{ids} % {rows}", columns

    def row(self) -> str:
        """Draws features `[n, 4]`."""
        return str(self.pick(self.rows))

    def new_row(self, expression: str, instead: str = "") -> str:
        """Adds features `[n, 4]` from an expression; returns their name."""
        name = self.name("h")
        self.add(f"{name} = {expression}", name, instead)
        self.rows.append(name)
        return name
