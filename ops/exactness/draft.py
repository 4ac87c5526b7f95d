"""A program as statements, from which some can be left out; and the draft in which the grammar writes one.

A program is Python text that needs TensorFlow and NumPy alone. A statement may name what stands for its result where
the statement is left out: so a shorter program is still a program, and the shrinker knows nothing of the grammar.
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
    """The ops that are run in turn; `rows` of the batch, or None for an open batch dimension."""
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
"""Of `tf.compat.v1.train`."""


@dataclass(frozen=True, slots=True)
class Statement:
    """Some lines of a program.

    Attributes:
        text: the lines.
        target: the name that they define, if there is something else to stand for it.
        instead: what stands for it where the statement is left out.
        taped: whether it is what a gradient tape watches.
        is_kept: whether no program can do without it.
        plain: the plainest lines that can be in their place.
    """

    text: str
    target: str = ""
    instead: str = ""
    taped: bool = False
    is_kept: bool = False
    plain: str = ""

    def renamed(self, name: str, other: str) -> Statement:
        """The statement with another word for a name."""
        word = re.compile(rf"\b{re.escape(name)}\b")
        return replace(
            self,
            text=word.sub(other, self.text),
            target=word.sub(other, self.target),
            instead=word.sub(other, self.instead),
        )


@dataclass(frozen=True, slots=True)
class Program:
    """A graph that trains, as text.

    Attributes:
        title: what it is.
        feeds: name of a placeholder -> expression of its values.
        statements: that build the graph.
        result: expression of the ops that are run in turn.
        tape: whether gradients are a tape's.
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
        """The text."""
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
        """The program without one of its statements."""
        left_out, later = self.statements[number], self.statements[number + 1 :]
        if left_out.instead:
            later = tuple(s.renamed(left_out.target, left_out.instead) for s in later)
        return replace(self, statements=(*self.statements[:number], *later))


@dataclass
class Draft:
    """A program as it is written.

    Attributes:
        rng: what is drawn from.
        ids: (name, bound) of ids `[n]`.
        bags: (name, bound, columns) of ids `[n, columns]`.
        tables: (name, rows) of variables `[rows, 4]` that are looked up.
        rows: names of features `[n, 4]`.
        turns: the ops that are run in turn.
        feeding: the op that is run before each of these, if any.
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
        """Of the ops that are run in turn; before each one the op that puts in its batch, if there is one."""
        return f"[{', '.join(op for turn in self.turns for op in (self.feeding, turn) if op)}]"

    def optimizer(self, rate: str) -> str:
        """An optimizer of `tf.compat.v1.train`."""
        return str(self.pick(OPTIMIZERS)).replace("RATE", rate)

    def name(self, prefix: str) -> str:
        """A new name."""
        self.counts[prefix] = self.counts.get(prefix, -1) + 1
        return f"{prefix}{self.counts[prefix]}"

    def add(self, text: str, target: str = "", instead: str = "", is_kept: bool = False, plain: str = "") -> str:
        """Writes a statement and returns its target."""
        text = textwrap.dedent(text).strip("\n")
        self.statements.append(Statement(text, target, instead, self.taped, is_kept, plain if plain != text else ""))
        return target

    def pick(self, options: Any) -> Any:
        """One of some options."""
        return options[self.rng.randint(len(options))]

    def chance(self, share: float) -> bool:
        """True in this share of cases."""
        return bool(self.rng.rand() < share)

    def weight(self, rows: int, columns: int) -> str:
        """A new dense variable."""
        name = self.name("w")
        return self.add(f'{name} = v1.get_variable("{name}", [{rows}, {columns}], F)', name)

    def table(self) -> tuple[str, int]:
        """A variable that is looked up: one that is there already, or a new one."""
        if self.tables and self.chance(0.4):
            name, rows = self.tables[self.rng.randint(len(self.tables))]
            return name, rows
        name, rows = self.name("emb"), int(self.pick((11, 8, 13)))
        self.add(f'{name} = v1.get_variable("{name}", [{rows}, 4], F)', name)
        self.tables.append((name, rows))
        return name, rows

    def looked_up(self) -> tuple[str, str]:
        """A table, and ids `[n]` of it."""
        table, rows = self.table()
        ids, bound = self.ids[self.rng.randint(len(self.ids))]
        return table, ids if bound <= rows else f"{ids} % {rows}"

    def bag(self) -> tuple[str, str, int]:
        """A table, ids `[n, columns]` of it, and the columns."""
        table, rows = self.table()
        ids, bound, columns = self.bags[self.rng.randint(len(self.bags))]
        return table, ids if bound <= rows else f"{ids} % {rows}", columns

    def row(self) -> str:
        """Some features `[n, 4]`."""
        return str(self.pick(self.rows))

    def new_row(self, expression: str, instead: str = "") -> str:
        """Features `[n, 4]`, of an expression."""
        name = self.name("h")
        self.add(f"{name} = {expression}", name, instead)
        self.rows.append(name)
        return name
