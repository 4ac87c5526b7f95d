"""`parallax checkpoint compact`: a whole checkpoint of the latest state of a folder, made without a job."""

from __future__ import annotations

import uuid

from parallax.errors import CheckpointError
from parallax.runtime.checkpoint.files.chain import Chain, States
from parallax.runtime.checkpoint.files.folder import absolute, file_errors
from parallax.runtime.checkpoint.files.folder_owner import claim_of
from parallax.runtime.checkpoint.files.links import HEADER, Header
from parallax.runtime.checkpoint.files.sorted_string_table import DamagedCheckpoint
from parallax.runtime.checkpoint.files.stored_rows import copy, stored_parts
from parallax.runtime.checkpoint.files.stored_tensors import CHUNK_BYTES
from parallax.runtime.checkpoint.files.writer import Writer
from parallax.strict import shown


def compact(folder: str, chunk_bytes: int = CHUNK_BYTES) -> tuple[str, list[str]]:
    """Writes a whole checkpoint of a whole one and the increments that follow it; what is there stays.

    Args:
        folder: with the checkpoints of a job that has ended.
        chunk_bytes: of values that are held at once, at most.

    Returns:
        Its prefix, or that of the latest where no increment follows; and what was skipped, a sentence each.

    Raises:
        CheckpointError: when no checkpoint of the folder is whole, or files cannot be written.
    """
    states = States(absolute(folder))
    with file_errors(f"The checkpoints of {shown(folder)} must be read and written", "Free space there."):
        while (prefix := states.following()) is not None:
            chain = states.open_chain()
            if not chain.increments:
                return prefix, states.notes
            try:
                return _write(chain, absolute(folder), chunk_bytes), states.notes
            except DamagedCheckpoint as error:
                states.is_damaged(error)
    raise CheckpointError(
        f"A folder with a whole checkpoint must be named, and {shown(folder)} has none. {' '.join(states.notes)}"
    )


def _write(chain: Chain, folder: str, chunk_bytes: int) -> str:
    """Writes all tensors of the state that a chain ends with, and a header of its own."""
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
