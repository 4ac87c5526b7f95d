import pytest

from parallax.runtime.supervisor.control import RESULT_SIZE
from parallax.runtime.supervisor.frames import ResultPart
from parallax.runtime.supervisor.pipes import ResultChannel

DATA = bytes(range(100))
STREAM = RESULT_SIZE.pack(len(DATA)) + DATA


@pytest.mark.parametrize("size", [1, 7, 8, 9, len(STREAM)])
def test_a_result_is_sent_on_as_it_comes(size):
    channel = ResultChannel(0)
    found = [frame for at in range(0, len(STREAM), size) for frame in channel.feed(STREAM[at : at + size])]
    assert b"".join(part.data for part in found) == DATA
    assert {part.total_bytes for part in found} == {len(DATA)}


def test_an_empty_result_is_told():
    assert list(ResultChannel(0).feed(RESULT_SIZE.pack(0))) == [ResultPart(0, 0, b"")]


def test_half_a_number_tells_nothing():
    channel = ResultChannel(0)
    assert list(channel.feed(STREAM[:5])) == list(channel.rest(last=True)) == []
