"""No byte of a checkpoint is read unchecked: what is damaged is refused, in words of this project."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from parallax.base.errors import CheckpointError
from parallax.runtime.checkpoint.format import bundle as bundle_module
from parallax.runtime.checkpoint.format.bundle import Bundle
from parallax.runtime.checkpoint.format.checksum import BLOCK_BYTES, crc32c, join_checksums, mask
from parallax.runtime.checkpoint.format.sorted_string_table import table
from tests.mutations import for_all, mutated_bytes

v1 = tf.compat.v1
WORDS = [b"one", b"", b"x" * 20]
VALUES = {
    "emb": np.arange(44, dtype=np.float32).reshape(11, 4),
    "flag": np.array(True),
    "half": np.arange(6).astype(tf.bfloat16.as_numpy_dtype),
    "step": np.array(7, np.int64),
    "words": np.array(WORDS, object),
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint of Saver with values of many types, one of them in parts."""
    with tf.Graph().as_default(), v1.Session() as session:
        for name, value in VALUES.items():
            v1.get_variable(name, initializer=tf.constant(value))
        v1.get_variable("parts", [7, 3], partitioner=v1.fixed_size_partitioner(2))
        session.run(v1.global_variables_initializer())
        path = str(tmp_path_factory.mktemp("small") / "model.ckpt-7")
        return str(v1.train.Saver().save(session, path, write_meta_graph=False))


def files(prefix: str) -> list[Path]:
    return sorted(Path(prefix).parent.glob(f"{Path(prefix).name}.*"))


def damaged_copies(prefix: str, folder: Path, mutate: Callable[[bytes], Iterator[bytes]]) -> Iterator[str]:
    """The prefix of a copy, again and again, in which one file is a mutation of the original's."""
    for file in files(prefix):
        (folder / file.name).write_bytes(file.read_bytes())
    for file in files(prefix):
        for content in mutate(file.read_bytes()):
            (folder / file.name).write_bytes(content)
            yield str(folder / Path(prefix).name)
        (folder / file.name).write_bytes(file.read_bytes())


def refused(prefix: str) -> bool:
    try:
        Bundle(prefix).verify()
    except CheckpointError:
        return True
    return False


def test_checksums_are_those_of_the_standard() -> None:
    assert crc32c(b"1234", b"56789") == 0xE3069283  # RFC 3720's check value
    content = random.Random(1).randbytes(3 * BLOCK_BYTES + 17)
    blocks = [content[at : at + BLOCK_BYTES] for at in range(0, len(content), BLOCK_BYTES)]
    assert join_checksums(blocks) == (crc32c(content), [crc32c(block) for block in blocks])


def test_all_that_saver_wrote_is_read_and_checked(small: str) -> None:
    opened = Bundle(small)
    assert opened.verify() == []
    for name, value in VALUES.items():
        tensor = opened.tensors[name]
        np.testing.assert_array_equal(opened.read(name, (0,) * len(tensor.shape), tensor.shape), value)
    assert opened.tensors["words"].dtype == "string" and len(opened.tensors["parts"].pieces) == 2


@pytest.mark.parametrize("bits", [1, pytest.param(8, marks=pytest.mark.slow)], ids=["a bit of each", "all bits"])
def test_every_flipped_byte_is_noticed(small: str, tmp_path: Path, bits: int) -> None:
    def flipped(content: bytes) -> Iterator[bytes]:
        for at, byte in enumerate(content):
            for bit in range(at % 8, at % 8 + bits):
                yield content[:at] + bytes([byte ^ 1 << bit % 8]) + content[at + 1 :]

    assert [copy for copy in damaged_copies(small, tmp_path, flipped) if not refused(copy)] == []


def test_every_truncation_is_noticed(small: str, tmp_path: Path) -> None:
    def truncated(content: bytes) -> Iterator[bytes]:
        yield from (content[: len(content) * part // 50] for part in range(50))

    assert [copy for copy in damaged_copies(small, tmp_path, truncated) if not refused(copy)] == []


def test_rows_of_a_large_piece_are_checked_though_only_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_module, "BLOCK_BYTES", 64)
    monkeypatch.setattr("parallax.runtime.checkpoint.format.checksum.BLOCK_BYTES", 64)
    join_checksums.__globals__["_columns"].cache_clear()
    rows = np.arange(400, dtype=np.float32).reshape(100, 4)
    with tf.Graph().as_default(), v1.Session() as session:
        v1.get_variable("emb", initializer=rows)
        session.run(v1.global_variables_initializer())
        prefix = str(v1.train.Saver().save(session, str(tmp_path / "m"), write_meta_graph=False))
    [data] = tmp_path.glob("*.data-*")
    for first, count in ((0, 1), (3, 2), (50, 50), (99, 1)):
        np.testing.assert_array_equal(Bundle(prefix).read("emb", (first, 0), (count, 4)), rows[first : first + count])
    opened, content = Bundle(prefix), data.read_bytes()
    opened.read("emb", (3, 0), (2, 4))
    data.write_bytes(content[:800] + np.full(12, -1, np.float32).tobytes() + content[848:])
    with pytest.raises(CheckpointError, match="a wrong checksum"):  # damaged rows, and rows beside them
        Bundle(prefix).read("emb", (50, 0), (3, 4))
    with pytest.raises(CheckpointError, match="a wrong checksum"):
        Bundle(prefix).read("emb", (0, 0), (3, 4))
    with pytest.raises(CheckpointError, match="a wrong checksum"):  # damaged after the piece was gone through
        opened.read("emb", (50, 0), (3, 4))
    join_checksums.__globals__["_columns"].cache_clear()


def with_right_checksums(content: bytes) -> bytes:
    """An index whose blocks have the checksums of what is in them now."""
    found = bytearray(content)
    footer, at = content[-48:], 0
    numbers = []
    for _ in range(4):
        number, at = next(_numbers(footer, at))
        numbers.append(number)
    places = [(0, numbers[0] - 5), (numbers[0], numbers[1]), (numbers[2], numbers[3])]  # one block of data
    for start, size in places:
        crc = mask(crc32c(bytes(found[start : start + size + 1])))
        found[start + size + 1 : start + size + 5] = crc.to_bytes(4, "little")
    return bytes(found)


def _numbers(data: bytes, at: int) -> Iterator[tuple[int, int]]:
    value = shift = 0
    while data[at] > 127:
        value, shift, at = value | (data[at] & 127) << shift, shift + 7, at + 1
    yield value | data[at] << shift, at + 1


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)], ids=["some", "ten thousand"])
def test_mutated_indexes_raise_nothing_foreign(small: str, tmp_path: Path, count: int) -> None:
    [index] = [file for file in files(small) if file.name.endswith(".index")]
    for file in files(small):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    content, copy = index.read_bytes(), str(tmp_path / Path(small).name)
    assert with_right_checksums(content) == content

    def check(mutated: bytes, body: bytes) -> None:
        (tmp_path / index.name).write_bytes(mutated)
        assert refused(copy) or mutated == content
        fitted = body[: len(content) - 48].ljust(len(content) - 48, b"\0") + content[-48:]
        (tmp_path / index.name).write_bytes(with_right_checksums(fitted))  # as one who knows the format would
        refused(copy)

    for_all(count, check, mutated_bytes(content), mutated_bytes(content[:-48]))
    assert table(content, "index")
