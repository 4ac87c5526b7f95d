"""The book is true: its generated parts, its commands and what they print, its links, the errors that it quotes."""

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from ops.book.__main__ import make_desk
from ops.book.follow import ELSEWHERE, NotAsWritten, elsewhere, follow, reader_environment
from ops.book.generated import attributes_of, with_generated
from ops.book.messages import can_be_printed, quoted_errors
from ops.book.newcomer import newcomer
from ops.book.pages import PAGES, ROOT, ChangeFile, Command, WriteFile, commands_of, steps_of

RUN_HERE = {page: [c for c in commands_of(page) if not elsewhere(c.text)] for page in PAGES}
QUICK = [page for page, commands in RUN_HERE.items() if any(not c.slow for c in commands)]
SLOW = [page for page, commands in RUN_HERE.items() if any(c.slow for c in commands)]
TROUBLES = Path("docs/troubleshooting.md")
MOST_WORDS = 20_000
FIRST = (Path("docs/quick_start.md"), Path("docs/keras.md"))
"""The pages of which each day's test command follows the commands."""


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


def without_fences(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


# --- what is written ---


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_generated_parts_are_as_the_code_has_them(page):
    assert with_generated(text_of(page)) == text_of(page), "run `python -m ops.book write`"


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", without_fences(text_of(page))):
        target, _, heading = link.partition("#")
        if target.startswith("https:"):
            continue
        file = (ROOT / page).parent / target if target else ROOT / page
        assert file.is_file(), link
        titles = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
        anchors = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
        assert not heading or heading in anchors, link


def test_the_readme_says_of_notebooks_what_the_page_that_trains_in_one_shows():
    page = text_of(Path("docs/keras.md"))
    (limit,) = [one for one in re.split(r"\n- ", text_of(Path("README.md"))) if "notebook" in one]
    assert "(docs/keras.md#in-a-notebook)" in limit
    section = page[page.index("## In a notebook") :]
    assert [c for c in commands_of(Path("docs/keras.md")) if c.text in section and "cells.txt" in c.text]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_commands_stand_in_marked_blocks(page):
    unmarked = re.sub(r"^```(?:sh|console)\b.*?^```$", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"^(?: {4})?(?:\$ )?((?:parallax|python -m|make|sbatch|kubectl) .*)$", unmarked, re.MULTILINE)
    usage = ("[OPTIONS]", "──>")
    assert [c for c in found if not elsewhere(c) and not any(mark in c for mark in usage)] == []


def test_every_page_of_the_book_is_in_the_readme():
    assert [str(page) for page in PAGES[1:] if f"]({page})" not in text_of("README.md")] == []


def test_the_book_is_short():
    assert sum(len(text_of(page).split()) for page in PAGES) <= MOST_WORDS


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_python_in_the_book_is_python(page):
    for step in steps_of(text_of(page), str(page)):
        if isinstance(step, WriteFile) and step.name.endswith(".py"):
            compile(step.text, step.name, "exec")


@pytest.mark.parametrize("text", quoted_errors(TROUBLES))
def test_quoted_errors_are_what_the_code_says(text):
    assert can_be_printed(text)


def test_a_text_that_nobody_says_is_seen():
    said = "An id must be a row of its table: emb has rows 0 to 9, got 11. Check what feeds the lookup."
    assert can_be_printed(said)
    assert not can_be_printed(said.replace("must", "should").replace("Check", "Look at"))
    assert can_be_printed(
        "Cannot plan variable 'w': ..., and no route supports that. Remove random ops, batch data and ops that mix "
        "rows from its update."
    )
    assert not can_be_printed(
        "Cannot plot variable 'w': ..., and no route allows that. Delete random ops, batch data and ops that mix "
        "rows from its update."
    )


# --- what is run ---


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.rotates] * (page not in FIRST)) for page in QUICK], ids=str
)
def test_quick_commands_do_what_their_page_says(page, tmp_path):
    make_desk(tmp_path)
    assert follow(page, tmp_path, reader_environment() | {"TMPDIR": str(tmp_path)}, slow=False)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", SLOW, ids=str)
def test_all_commands_do_what_their_page_says(page, tmp_path):
    if "ops.lab" in text_of(page) and os.geteuid() != 0:
        pytest.skip("an emulated cluster needs root")
    make_desk(tmp_path)
    assert follow(page, tmp_path, reader_environment() | {"TMPDIR": str(tmp_path)}, slow=True)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_newcomer_comes_through():
    newcomer(Path(sys.prefix), slow=False)


def test_what_is_not_run_is_in_the_book_and_has_a_reason():
    commands = [c.text for page in PAGES for c in commands_of(page)]
    for begin, why in ELSEWHERE.items():
        assert len(why) > 20, begin
        assert any(command.split()[: len(begin.split())] == begin.split() for command in commands), begin


# --- the mechanism ---

PAGE = """
```python file=a.py
print(1)
```

```diff file=a.py
-print(1)
+print(2)
```

```console status=3
$ python a.py; \\
  exit 3
2
```
"""


def test_a_page_is_files_changes_and_commands():
    written, changed, command = steps_of(PAGE, "page")
    assert written == WriteFile("a.py", "print(1)\n")
    assert changed == ChangeFile("a.py", "print(1)\n", "print(2)\n")
    assert command == Command("python a.py; exit 3", ("2",), 3, False, False, "page:12")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("2\n```", "3\n```", "not printed where it is shown: 3"),
        ("status=3", "status=4", "exit status 3"),
        ("-print(1)", "-print(7)", "a.py has the lines to change 0 times"),
    ],
)
def test_what_is_not_as_written_is_seen(tmp_path, monkeypatch, old, new, message):
    (tmp_path / "page.md").write_text(PAGE)
    follow(tmp_path / "page.md", tmp_path, reader_environment(), slow=False)
    (tmp_path / "page.md").write_text(PAGE.replace(old, new))
    with pytest.raises(NotAsWritten, match=message):
        follow(tmp_path / "page.md", tmp_path, reader_environment(), slow=False)


@pytest.mark.parametrize(
    ("shown", "printed", "about", "missing"),
    [
        (("a", "c"), "a\nb\nc\n", False, ""),
        (("c", "a"), "a\nb\nc\n", False, "a"),
        (("loss ... of",), "loss 3 of\n", False, ""),
        (("loss 0.637, 1,000 rows",), "loss 0.64, 999 rows\n", False, "loss 0.637, 1,000 rows"),
        (("loss 0.637, 1,000 rows",), "loss 0.64, 999 rows\n", True, ""),
        (("a  10  -----",), "a  9  ----\n", True, ""),
    ],
)
def test_shown_lines_must_be_printed_in_their_order(shown, printed, about, missing):
    assert Command("c", shown, 0, False, about, "page:1").missing(printed) == missing


def test_unknown_words_after_a_fence_are_refused():
    with pytest.raises(ValueError, match="page:1: unknown words after the fence: quick"):
        list(steps_of("```sh quick\ntrue\n```\n", "page"))


def test_a_setting_without_a_description_is_seen():
    @dataclass
    class Settings:
        """Some.

        Attributes:
            one: the first,
                in two lines.
        """

        one: int = 1

    assert attributes_of(Settings) == {"one": "the first, in two lines."}
    Settings.__doc__ = Settings.__doc__.replace("one:", "two:")
    with pytest.raises(ValueError, match="has the fields one, and describes two"):
        attributes_of(Settings)
