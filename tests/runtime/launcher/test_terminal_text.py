import pytest

from parallax.runtime.launcher.output.relay import TerminalFilter

BAR = "\x1b[1m1/4\x1b[0m \x1b[32m━━\x1b[0m\x1b[37m━\x1b[0m \x1b[38;5;208mloss\x1b[m: 0.5"


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("no colours\n", "no colours\n"),
        (BAR, "1/4 ━━━ loss: 0.5"),
        ("a\x1b[2K\x1b[1Ab\x1b]0;title\x07c\x1b]8;;file\x1b\\d\x1b(Be\x1b7f", "abcdef"),
        ("[1m is no colour, and \x1b", "[1m is no colour, and "),
    ],
)
def test_text_that_is_no_sequence_stays_wherever_it_is_cut(text, plain):
    assert TerminalFilter().plain(text) == plain
    cut = TerminalFilter()
    assert "".join(cut.plain(letter) for letter in text) == plain
    for place in range(len(text)):
        halves = TerminalFilter()
        assert halves.plain(text[:place]) + halves.plain(text[place:]) == plain


def test_a_terminal_without_colours_keeps_what_moves_its_cursor():
    assert TerminalFilter(is_terminal=True).plain("\x1b[2K\x1b[31mred\x1b[0m\r") == "\x1b[2Kred\r"


def test_what_only_begins_like_a_sequence_is_not_held_back_for_ever():
    assert TerminalFilter().plain("\x1b[" + "0" * 300).endswith("0")


def test_an_escape_at_the_end_of_a_line_is_text():
    assert TerminalFilter().plain("a \x1b\n") == "a \x1b\n"
