import pytest

from parallax.runtime.supervisor.control import RESULT_HEAD_BYTES, checksum, result_head
from parallax.runtime.supervisor.frames import ResultPart, Text
from parallax.runtime.supervisor.pipes import ResultChannel

DATA = bytes(range(100))
CRC = checksum(DATA)
STREAM = result_head(len(DATA), CRC) + DATA


@pytest.mark.parametrize("size", [1, 7, RESULT_HEAD_BYTES, RESULT_HEAD_BYTES + 1, len(STREAM)])
def test_a_result_is_sent_on_as_it_comes(size):
    channel = ResultChannel(0)
    found = [frame for at in range(0, len(STREAM), size) for frame in channel.feed(STREAM[at : at + size])]
    assert b"".join(part.data for part in found) == DATA
    assert {(part.total_bytes, part.crc) for part in found} == {(len(DATA), CRC)}


def test_an_empty_result_is_told():
    assert list(ResultChannel(0).feed(result_head(0, 0))) == [ResultPart(0, 0, 0, b"")]


def test_a_damaged_head_is_said_once_and_the_bytes_are_dropped():
    channel = ResultChannel(0)
    [said] = channel.feed(b"X" + STREAM[1:])
    assert isinstance(said, Text) and "this rank's result was dropped" in said.text
    assert list(channel.feed(DATA)) == []


def test_half_a_head_tells_nothing():
    channel = ResultChannel(0)
    assert list(channel.feed(STREAM[:5])) == list(channel.rest(last=True)) == []
