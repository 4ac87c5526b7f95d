"""The line at a terminal that says what is waited for."""

import io
import logging

import pytest

from parallax.base.status_line import clear_status, show_status, status_line
from parallax.report.logger import log


class Terminal(io.StringIO):
    """A stream that is a terminal, or is not."""

    def __init__(self, is_terminal=True):
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self):
        return self._is_terminal


def test_a_line_takes_the_place_of_the_one_before_and_goes_at_the_end(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)  # in the test itself: pytest captures by phase
    with status_line():
        show_status("planning 3 ops")
        show_status("2 workers open the session")
    assert terminal.getvalue() == "\r\x1b[Kplanning 3 ops ...\r\x1b[K2 workers open the session ...\r\x1b[K"


def test_other_text_comes_on_a_line_of_its_own(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(log, "level", logging.INFO)
    with status_line():
        show_status("planning")
        log.info("A note.")
        clear_status()
    assert terminal.getvalue() == "\r\x1b[Kplanning ...\r\x1b[KPARALLAX INFO: A note.\n"


@pytest.mark.parametrize(("is_wanted", "is_terminal"), [(False, True), (True, False)])
def test_nothing_is_shown_without_a_terminal_or_a_wish(monkeypatch, is_wanted, is_terminal):
    stream = Terminal(is_terminal)
    monkeypatch.setattr("sys.stderr", stream)
    with status_line(is_wanted):
        show_status("planning")
    show_status("outside")
    assert stream.getvalue() == ""
