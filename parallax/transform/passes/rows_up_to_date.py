"""Pass: brings rows of lazily updated tables up to date where an op reads or overwrites them.

A table whose update touches only the rows of a batch (parallax/analysis/reading/lazy) has rows that lack updates. Its
members, the table first and then its slots, are the variables of the update; partitions on servers are members of their
own tables there, and a worker that only reads them has no update in its graph. Ops that gather rows of the table, or
read it or a slot in full, get up-to-date rows; other writers of one of them wait until all rows are up to date. A
handle that passes through a Switch or Enter has the other members' handles alongside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from parallax.base.errors import TransformError
from parallax.base.types import GraphDef, NodeDef
from parallax.graph.ops import PASSES_ON, source_of, state_op
from parallax.graph.row_updates import BRING_UP_TO_DATE, GATHER_ROWS, READ_ROWS, UPDATE_ROWS, row_update_ops, states_of
from parallax.graph.view import split_tensor, tensor_name
from parallax.transform.building.editor import SCOPE, Editor

_LEAVES_VALUES_ALONE = ("VarIsInitializedOp", "VariableShape", "DestroyResourceOp", BRING_UP_TO_DATE, UPDATE_ROWS)


def lazily_updated(editor: Editor) -> tuple[tuple[str, ...], ...]:
    """The variable ops of each lazily updated table of a worker's graph, and of each partition of one."""
    handle_groups: dict[tuple[str, ...], None] = {}
    for node in editor.view.graph_def.node:
        if node.op != UPDATE_ROWS:
            continue
        members = [source_of(handle, editor.view.nodes) for handle in states_of(node)]
        if members[0] in editor.partitions:
            for parts in zip(*(editor.partitions[member] for member in members), strict=True):
                handle_groups[tuple(str(part.op.name) for part in parts)] = None
        else:
            handle_groups[tuple(members)] = None
    return tuple(handle_groups)


def keep_up_to_date(graph_def: GraphDef, tables: Sequence[tuple[str, ...]]) -> dict[str, str]:
    """Makes every reader and writer of lazily updated tables see rows without missed updates.

    Args:
        graph_def: a worker's finished graph; modified in place.
        tables: the variable ops of each, as returned by `lazily_updated`.

    Returns:
        The result of a read of a variable -> its up-to-date value. The reads stay, as TensorFlow looks them up.

    Raises:
        TransformError: a variable of such a table is passed to an op that may read it in another way.
    """
    if not tables:
        return {}
    row_update_ops()  # importers of the graph need to register the ops
    return _Pass(graph_def, tables).run()


@dataclass(frozen=True, slots=True)
class _Member:
    """A variable of a lazily updated table: its index among the handles of the update, and all of these."""

    number: int
    handles: tuple[str, ...]


class _Pass:
    def __init__(self, graph_def: GraphDef, tables: Sequence[tuple[str, ...]]) -> None:
        self.graph_def = graph_def
        self.nodes = {node.name: node for node in graph_def.node}
        self.added: dict[str, NodeDef] = {}
        self.read: dict[str, str] = {}
        self.members: dict[str, _Member] = {}
        for handles in tables:
            for number, handle in enumerate(handles):
                known = self.members.setdefault(handle, _Member(number, handles))
                if known.handles != handles:
                    raise TransformError(
                        f"A variable must belong to one lazily updated table, but {handle!r} belongs to "
                        f"{known.handles[0]!r} and {handles[0]!r}. Set lazy_updates=False."
                    )

    def run(self) -> dict[str, str]:
        """Changes all nodes that read a member, or the result of its read."""
        for node in list(self.graph_def.node):
            if node.op in PASSES_ON or node.op in _LEAVES_VALUES_ALONE:
                continue
            roots = {
                source_of(name, self.nodes): slot for slot, name in enumerate(node.input) if not name.startswith("^")
            }
            for member in (one for one in roots if one in self.members):
                self._meets(node, roots[member], self.members[member])
        for node in self.graph_def.node:
            for slot, name in enumerate(node.input):
                if not name.startswith("^") and tensor_name(name) in self.read:
                    node.input[slot] = self.read[tensor_name(name)].removesuffix(":0")
        self.graph_def.node.extend(self.added.values())
        return self.read

    def _meets(self, node: NodeDef, slot: int, member: _Member) -> None:
        """Handles a node that reads the handle of a member."""
        controls = [name for name in node.input if name.startswith("^")]
        handles = self._pass_members_along(node.input[slot], member)
        if node.op == "ReadVariableOp":
            name = f"{SCOPE}/up_to_date/{node.name}"
            read = self.added[name] = type(node)()
            read.CopyFrom(node)
            read.name = name
            _become(read, READ_ROWS, [*handles, *controls], "dtype", len(handles), member.number)
            self.read[f"{node.name}:0"] = f"{name}:0"
            node.input.append(f"^{self._bring_up_to_date(node, handles)}")
        elif node.op == "ResourceGather" and slot == 0:
            if node.attr["batch_dims"].i:
                raise _refusal(node, member)
            _become(node, GATHER_ROWS, [node.input[1], *handles, *controls], "dtype", len(handles), member.number)
        elif state_op(node.op, len(node.input) - len(controls)) is not None:
            node.input.append(f"^{self._bring_up_to_date(node, handles)}")
        else:
            raise _refusal(node, member)

    def _pass_members_along(self, handle: str, member: _Member) -> list[str]:
        """The handles of all members, passed along the route of one of them."""
        return [self._pass_handle(handle, one) for one in member.handles]

    def _pass_handle(self, handle: str, to: str) -> str:
        """The handle of a variable, through copies of the ops that another handle has passed."""
        name, output = split_tensor(tensor_name(handle))
        if self.nodes[name].op not in PASSES_ON:
            return to
        if source_of(handle, self.nodes) == to:
            return handle
        copy_name = f"{SCOPE}/up_to_date/{name}/{to}"
        if copy_name not in self.added:
            copied = self.added[copy_name] = type(self.nodes[name])()
            copied.CopyFrom(self.nodes[name])
            copied.name = copy_name
            copied.attr.pop("_output_shapes", None)
            copied.input[0] = self._pass_handle(self.nodes[name].input[0], to)
        return f"{copy_name}:{output}" if output else copy_name

    def _bring_up_to_date(self, node: NodeDef, handles: list[str]) -> str:
        """The name of a node after which all rows of a table are up to date; it precedes a writing node."""
        name = f"{SCOPE}/up_to_date/before/{node.name}"
        made = self.added[name] = type(node)(name=name, op=BRING_UP_TO_DATE, device=node.device)
        made.input.extend(handles)
        made.attr["N"].i = len(handles)
        made.attr["T"].type = self.nodes[source_of(handles[0], self.nodes)].attr["dtype"].type
        return name


def _become(node: NodeDef, op: str, inputs: Iterable[str], dtype: str, states: int, which: int) -> None:
    """Turns a node into one that reads rows, under its old name."""
    kind = node.attr[dtype].type
    indices = node.attr["Tindices"].type
    shapes = node.attr["_output_shapes"] if "_output_shapes" in node.attr else None
    original = type(node)()
    if shapes is not None:
        original.attr["_output_shapes"].CopyFrom(shapes)
    inputs = list(inputs)
    node.op = op
    del node.input[:]
    node.input.extend(inputs)
    node.attr.clear()
    node.attr["T"].type = kind
    if op == GATHER_ROWS:
        node.attr["Tindices"].type = indices
    node.attr["N"].i = states
    node.attr["which"].i = which
    if shapes is not None:
        node.attr["_output_shapes"].CopyFrom(original.attr["_output_shapes"])


def _refusal(node: NodeDef, member: _Member) -> TransformError:
    return TransformError(
        f"A lazily updated table must be read by row or whole, but {node.op} {node.name!r} uses {member.handles[0]!r} "
        "in another way. Set lazy_updates=False."
    )
