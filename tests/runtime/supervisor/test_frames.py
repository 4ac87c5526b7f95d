import pytest

from parallax.runtime.supervisor.control import DamagedMessage
from parallax.runtime.supervisor.frames import (
    Control,
    Demultiplexer,
    Exit,
    Pulse,
    Start,
    Text,
    encode_frame,
    read_frame,
)


def lines_of(*chunks):
    demultiplexer = Demultiplexer()
    lines = [line for chunk in chunks for line in demultiplexer.feed(chunk)]
    return lines + list(demultiplexer.close())


@pytest.mark.parametrize(
    "frame",
    [
        Start(3, 100, 101, "host-a", ("/tmp/x", "/dev/shm/y.*")),
        Text(0, "stdout", "plain\n"),
        Text(0, "stderr", '\r[1,2]<stdout>: "é" \udcff\n\n'),
        Control(
            1, {"kind": "in_run", "fetch": "[a, b]<0>", "collectives": "d", "failures": ["b", "c"], "seconds": 2.5}
        ),
        Exit(1, -9, told=True),
        Exit(0, 0),
        Pulse(2, 0.0, 1.5, {"kind": "alive", "runs": 3, "fetch": "train", "seconds": 0.5}),
        Pulse(2),
    ],
    ids=lambda frame: type(frame).__name__,
)
def test_a_frame_is_one_line_that_no_tag_can_hide_in(frame):
    line = encode_frame(frame)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert b"<" not in line
    assert line.isascii()
    assert read_frame(line) == frame


def test_every_frame_is_longer_than_a_tag():
    # mpirun has room for as many bytes of tags as of text: shorter lines could lose their tag.
    assert len(encode_frame(Exit(0, 0))) > len(b"[65535,999999]<stdout>:")


@pytest.mark.parametrize("line", [b"", b"words of mpirun", b"2", b"{}", b'{"rank": 0}', b'{"rank": 0, "start": {}}'])
def test_what_is_no_frame_is_told_apart(line):
    with pytest.raises(DamagedMessage):
        read_frame(line)


def test_pieces_of_two_ranks_that_meet_in_a_line_are_put_together():
    stream = b"[1,0]<stdout>:first [1,1]<stdout>:other [1,0]<stdout>:half\n[1,1]<stdout>:half\n"
    assert lines_of(stream) == [(0, b"first half"), (1, b"other half")]


def test_a_newline_and_a_tag_alone_in_a_piece():
    assert lines_of(b"[1,1]<stdout>:2[1,1]<stdout>:\n[1,0]<stdout>:3\n") == [(1, b"2"), (0, b"3")]


def test_words_without_a_tag_are_mpiruns_own():
    stream = b"---\n[1,12]<stderr>:mine\nyours\n[1,12]<stderr>:mine again\n"
    assert lines_of(stream) == [(None, b"---"), (12, b"mine"), (None, b"yours"), (12, b"mine again")]


def test_what_looks_like_a_tag_is_left_alone():
    assert lines_of(b"[1,0]<stdout>:a[1,2] [3,4]<x [[5\n") == [(0, b"a[1,2] [3,4]<x [[5")]


def test_unended_lines_come_at_the_end_by_rank():
    assert lines_of(b"[1,1]<stdout>:one[1,0]<stdout>:zero[1") == [(0, b"zero[1"), (1, b"one")]


def test_the_stream_may_be_cut_anywhere():
    stream = b"[1,0]<stdout>:fir[9[1,1]<stdout>:se[1,0]<stdout>:st\n[1,0]<stdout>:third\nown\n[1,1]<stdout>:cond\n"
    whole = [(0, b"fir[9st"), (0, b"third"), (None, b"own"), (1, b"second")]
    assert lines_of(stream) == whole
    assert lines_of(*(stream[at : at + 1] for at in range(len(stream)))) == whole
    for at in range(len(stream)):
        assert lines_of(stream[:at], stream[at:]) == whole
