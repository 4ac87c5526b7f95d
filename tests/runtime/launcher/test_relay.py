import io
import os
import tempfile
from pathlib import Path

import pytest

from parallax.runtime.launcher.output.output_files import OutputFiles
from parallax.runtime.launcher.output.relay import BAR_EVERY_S, Relay


class Sink(io.BytesIO):
    """A stream that may be a terminal."""

    def __init__(self, is_terminal=False):
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal


def relayed(*pieces, is_terminal=False):
    """What is printed of (rank, stream, text, second) pieces; one sink for both streams shows the order."""
    sink = Sink(is_terminal)
    relay = Relay(sink, sink)
    for piece in pieces:
        relay.write(*piece)
    relay.close()
    return sink.getvalue().decode("utf-8", "surrogateescape")


def test_each_line_has_its_rank_before_it():
    assert relayed((1, "stdout", "a\nb\n", 0), (0, "stdout", "c\n", 0)) == "[1] a\n[1] b\n[0] c\n"


def test_stdout_and_stderr_stay_apart():
    stdout, stderr = Sink(), Sink()
    relay = Relay(stdout, stderr)
    relay.write(0, "stdout", "out\n", 0)
    relay.write(0, "stderr", "err\n", 0)
    assert (stdout.getvalue(), stderr.getvalue()) == (b"[0] out\n", b"[0] err\n")


def test_a_line_in_pieces_is_printed_once_it_is_whole():
    assert relayed((0, "stdout", "ha", 0), (1, "stdout", "x\n", 0), (0, "stdout", "lf\n", 9)) == "[1] x\n[0] half\n"


def test_an_unended_line_is_printed_at_the_end():
    assert relayed((1, "stdout", "last words", 0), (0, "stdout", "first", 0)) == "[0] first\n[1] last words\n"


def test_blank_lines_and_carriage_returns_before_newlines_are_kept_as_lines():
    assert relayed((0, "stdout", "a\r\n\r\n\nb\r", 0), (0, "stdout", "\n", 0)) == "[0] a\n[0] \n[0] \n[0] b\n"


def test_bytes_that_are_not_text_come_through():
    assert relayed((0, "stdout", "\udcff é\n", 0)) == "[0] \udcff é\n"


@pytest.mark.parametrize(
    "steps", [["10%\r", "20%\r", "100%\r", "\n"], ["\r10%", "\r20%", "\r100%", "\n"]], ids=["ends", "begins"]
)
def test_only_the_last_state_of_a_quick_bar_is_printed(steps):
    assert relayed(*((0, "stderr", step, 0.1 * number) for number, step in enumerate(steps))) == "[0] 100%\n"


def test_a_slow_bar_is_printed_now_and_then():
    steps = [(0, "stderr", f"\r{second}%", second) for second in range(13)]
    assert BAR_EVERY_S == 5
    assert relayed(*steps, (0, "stderr", "\n", 13)) == "[0] 5%\n[0] 10%\n[0] 12%\n"


def test_a_bar_that_stands_still_is_printed_when_its_time_comes_and_once():
    sink = Sink()
    relay = Relay(sink, sink)
    relay.write(0, "stderr", "\r40%", 0.0)
    for now_s in (1.0, 5.0, 20.0):
        relay.tick(now_s)
    assert sink.getvalue() == b"[0] 40%\n"
    relay.write(0, "stderr", "\n", 30.0)
    relay.close()
    assert sink.getvalue() == b"[0] 40%\n"


def test_a_bar_that_wipes_itself_away_leaves_nothing():
    assert relayed((0, "stderr", "\r40%", 0), (0, "stderr", "\r    \r", 1)) == ""
    assert relayed((0, "stderr", "\r40%", 0), (0, "stderr", "\r    \rdone\n", 1)) == "[0] done\n"


def test_on_a_terminal_a_bar_is_rewritten_in_place():
    printed = relayed((0, "stderr", "\r10%", 0), (0, "stderr", "\r20%", 0), (0, "stderr", "\n", 0), is_terminal=True)
    assert printed == "[0] 10%\r\x1b[K[0] 20%\r\x1b[K[0] 20%\n"


def test_on_a_terminal_lines_are_printed_above_the_bar():
    printed = relayed((1, "stderr", "\r10%", 0), (0, "stdout", "line\n", 0), is_terminal=True)
    assert printed == "[1] 10%\r\x1b[K[0] line\n[1] 10%\r\x1b[K[1] 10%\n"


def test_on_a_terminal_the_lowest_ranks_bar_is_shown():
    pieces = [(1, "stderr", "\r1%", 0), (0, "stderr", "\r2%", 0), (1, "stderr", "\r3%", 0)]
    assert relayed(*pieces, is_terminal=True) == "[1] 1%\r\x1b[K[0] 2%\r\x1b[K[0] 2%\n[1] 3%\n"


def test_the_last_lines_on_stderr_are_kept_by_rank():
    relay = Relay(Sink(), Sink())
    for number in range(60):
        relay.write(1, "stderr", f"line {number}\n", 0)
    relay.write(1, "stdout", "not this\n", 0)
    relay.write(1, "stderr", "\r10%\r20%\n", 0)
    assert relay.tail(1) == [*(f"line {number}" for number in range(11, 60)), "20%"]
    assert relay.tail(0) == []


def test_messages_with_characters_that_have_no_bytes_are_printed_all_the_same():
    sink = Sink()
    Relay(sink, sink).say("one\ntwo \ud800")
    assert sink.getvalue() == b"one\ntwo \\ud800\n"


def test_a_label_may_stand_for_the_rank():
    sink = Sink()
    relay = Relay(sink, sink, {0: "0", 1: "server 0"}.__getitem__)
    relay.write(1, "stdout", "a\n", 0)
    assert sink.getvalue() == b"[server 0] a\n"


def test_what_a_reader_left_unread_is_not_written_again_at_exit():
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as sink:
        os.close(reader)
        relay = Relay(sink, Sink())
        with pytest.raises(BrokenPipeError):
            relay.write(0, "stdout", "line\n", 0)
        relay.drop_unread()
        sink.flush()
        relay.write(0, "stdout", "line\n", 0)


def test_a_full_disk_loses_lines_and_ends_no_job():
    stderr = Sink()
    with tempfile.TemporaryFile("w+b") as room, Path("/dev/full").open("wb") as stdout:
        relay = Relay(stdout, stderr)
        for number in range(2000):
            relay.write(0, "stdout", f"lost {number}\n", 0)
        os.dup2(room.fileno(), stdout.fileno())
        relay.write(0, "stdout", "kept\n", 0)
        relay.close()
        assert os.pread(room.fileno(), 1000, 0) == b"[0] kept\n"
    told = "parallax: stdout cannot be written: No space left on device. What does not fit is lost.\n"
    assert stderr.getvalue().decode() == told


def test_a_terminal_that_was_closed_is_a_reader_that_is_gone():
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "wb") as terminal:
        relay = Relay(terminal, Sink())
        os.close(ours)
        with pytest.raises(BrokenPipeError):
            relay.write(0, "stdout", "a\n", 0)
        relay.drop_unread()
        assert os.fstat(terminal.fileno()).st_rdev == Path(os.devnull).stat().st_rdev


COLOURED = [(0, "stdout", "\x1b[32mgre", 0), (1, "stdout", "\x1b", 0), (0, "stdout", "en\x1b[0", 0)]
COLOURED += [(0, "stdout", "m\n", 0), (1, "stdout", "[1mbold\x1b[0m\n", 0)]


def test_colours_go_to_terminals_alone(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert relayed(*COLOURED) == "[0] green\n[1] bold\n"
    assert "\x1b[32mgreen\x1b[0m\n" in relayed(*COLOURED, is_terminal=True)


def test_no_color_takes_them_from_terminals_too(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    shown = relayed(*COLOURED, is_terminal=True)
    assert "[0] green\n" in shown and "\x1b[32m" not in shown and "\x1b[K" in shown


def test_files_have_no_colours(tmp_path, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    sink = Sink(is_terminal=True)
    relay = Relay(sink, sink, files=OutputFiles(tmp_path, ["worker-0", "worker-1"]))
    for piece in COLOURED:
        relay.write(*piece)
    relay.close()
    assert (tmp_path / "worker-0" / "stdout").read_text() == "green\n"
