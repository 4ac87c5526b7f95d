"""`parallax checkpoint`: lists a folder's checkpoints, verifies each, and exports one for other programs.

`parallax checkpoint compact` writes a full checkpoint of a folder's latest state, without a job.
"""

from __future__ import annotations

import posixpath
import time
import uuid
from collections.abc import Iterator, Sequence

import tensorflow as tf

from parallax.base.errors import CheckpointError
from parallax.base.strict import shown
from parallax.base.types import Graph
from parallax.report.text import bytes_text, pluralize
from parallax.runtime.checkpoint.commands.export import export_model, export_plain
from parallax.runtime.checkpoint.format.bundle import Bundle
from parallax.runtime.checkpoint.format.chain import Chain, States, chains, increments_in, is_increment
from parallax.runtime.checkpoint.format.folder import absolute, file_errors, list_prefixes
from parallax.runtime.checkpoint.format.folder_owner import claim_of
from parallax.runtime.checkpoint.format.links import HEADER, Header
from parallax.runtime.checkpoint.format.sorted_string_table import DamagedCheckpoint
from parallax.runtime.checkpoint.format.stored_rows import copy, stored_parts
from parallax.runtime.checkpoint.format.stored_tensors import CHUNK_BYTES
from parallax.runtime.checkpoint.format.writer import Writer


def list_checkpoints(folder: str) -> Iterator[str]:
    """Yields a line for each checkpoint of a folder: its time, size and tensors, and which is the latest.

    Raises:
        CheckpointError: when the folder has none, or cannot be read.
    """
    last_state = States(absolute(folder)).following()
    follows = _follows(absolute(folder))
    for prefix, bundle in _open_each(folder):
        if isinstance(bundle, DamagedCheckpoint):
            yield f"{shown(prefix)}: damaged: {bundle}"
            continue
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(_written_s(prefix)))
        pieces = [piece for tensor in bundle.tensors.values() for piece in tensor.pieces]
        size = bytes_text(sum(piece.size for piece in pieces))
        last = ", the latest" if prefix == last_state else ""
        if is_increment(prefix):
            last = f", {follows.get(prefix, 'follows nothing that is there')}{last}"
        yield f"{shown(prefix)}: {when}, {pluralize(len(bundle.tensors), 'tensor')}, {size}{last}"


def compact_lines(folder: str) -> Iterator[str]:
    """Writes the latest state of a folder as a full checkpoint; reports skipped checkpoints, and the new one's path.

    Raises:
        CheckpointError: as `compact`.
    """
    prefix, notes = compact(folder)
    yield from map(shown, notes)
    yield f"Whole: {shown(prefix)}"


def _follows(folder: str) -> dict[str, str]:
    """For each increment of a folder that follows a checkpoint, the description of that checkpoint."""
    base_by_increment = {}
    for prefix, chain, _ in chains(list_prefixes(folder)) if tf.io.gfile.isdir(folder) else ():
        before = prefix
        for bundle, _ in chain.increments if isinstance(chain, Chain) else ():
            base_by_increment[bundle.prefix] = f"follows {shown(posixpath.basename(before))}"
            before = bundle.prefix
    return base_by_increment


def verify_checkpoints(folder: str) -> Iterator[tuple[str, bool]]:
    """Yields a line for each checkpoint of a folder, and whether it is intact; every byte is read and compared.

    Raises:
        CheckpointError: when the folder has none, or cannot be read.
    """
    for prefix, bundle in _open_each(folder):
        try:
            if isinstance(bundle, DamagedCheckpoint):
                raise bundle
            began_s, unread = time.monotonic(), bundle.verify()
        except DamagedCheckpoint as error:
            yield f"{shown(prefix)}: damaged: {error}", False
            continue
        size = sum(piece.size for tensor in bundle.tensors.values() for piece in tensor.pieces)
        rate = bytes_text(round(size / max(time.monotonic() - began_s, 1e-6)))
        more = f"; not checked, as nothing says how: {', '.join(map(shown, unread))}" if unread else ""
        yield f"{shown(prefix)}: whole, {bytes_text(size)} checked at {rate}/s{more}", True


def export_lines(
    graph: Graph, checkpoint: str, folder: str, inputs: Sequence[str], outputs: Sequence[str]
) -> Iterator[str]:
    """Writes a SavedModel; yields a line for each input and output of its signature, and its path.

    Raises:
        CheckpointError: as `export_model`.
    """
    forward = export_model(graph, checkpoint, folder, inputs, outputs)
    for kind, tensors in (("input", forward.inputs), ("output", forward.outputs)):
        for name, tensor in tensors.items():
            yield f"{kind} {shown(name)}: {shown(tensor)}"
    yield f"Written: {shown(folder)}, {pluralize(len(forward.variables), 'variable')}"


def plain_lines(checkpoint: str, folder: str) -> Iterator[str]:
    """Writes a plain checkpoint, and reports its path.

    Raises:
        CheckpointError: as `export_plain`.
    """
    yield f"Written: {shown(export_plain(checkpoint, folder))}"


def _open_each(folder: str) -> Iterator[tuple[str, Bundle | DamagedCheckpoint]]:
    """Yields the prefixes of a folder's checkpoints, each with the open checkpoint, or why it cannot be opened."""
    path = absolute(folder)
    with file_errors(f"Cannot read the folder {shown(folder)}", "Name another."):
        prefixes = [*list_prefixes(path), *increments_in(path)] if tf.io.gfile.isdir(path) else []
        if not prefixes:
            raise CheckpointError(
                f"{shown(folder)} has no checkpoints. Name the folder that CheckPointConfig.ckpt_dir names."
            )
        for prefix in prefixes:
            try:
                yield prefix, Bundle(prefix)
            except DamagedCheckpoint as error:
                yield prefix, error


def _written_s(prefix: str) -> float:
    return float(tf.io.gfile.stat(f"{prefix}.index").mtime_nsec / 1e9)


def compact(folder: str, chunk_bytes: int = CHUNK_BYTES) -> tuple[str, list[str]]:
    """Merges a full checkpoint and the increments that follow it into a new full one; existing files stay.

    Args:
        folder: with the checkpoints of a job that has ended.
        chunk_bytes: maximum of values in memory at once.

    Returns:
        Its prefix, or that of the latest where no increment follows; and the skipped checkpoints, a sentence each.

    Raises:
        CheckpointError: when no checkpoint of the folder is intact, or files cannot be written.
    """
    states = States(absolute(folder))
    with file_errors(f"Cannot read or write the checkpoints of {shown(folder)}", "Free space there."):
        while (prefix := states.following()) is not None:
            chain = states.open_chain()
            if not chain.increments:
                return prefix, states.notes
            try:
                return _write(chain, absolute(folder), chunk_bytes), states.notes
            except DamagedCheckpoint as error:
                states.is_damaged(error)
    raise CheckpointError(f"{shown(folder)} has no complete checkpoint. {' '.join(states.notes)}")


def _write(chain: Chain, folder: str, chunk_bytes: int) -> str:
    """Writes all tensors of the last state of a chain, with a new header."""
    step = chain.increments[-1][1].step
    claim = claim_of(folder, "`parallax checkpoint compact`")
    writer = Writer(folder, step, chunk_bytes, claim=claim)
    variables = [part for one in chain.tensors.values() for part in stored_parts(one)]
    try:
        writer.begin()
        copy(chain, variables, writer, chunk_bytes)
        writer.add(HEADER, "", "string", Header(uuid.uuid4().hex, step=step).to_text())
        return writer.finish()
    except DamagedCheckpoint:
        writer.discard()
        raise
    finally:
        claim.release()
