"""Files that the book and the sources name are there: a reader who looks for one finds it under that name."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

from ops.book.pages import PAGES, ROOT, WriteFile, steps_of

FOLDERS = ("parallax", "ops", "tests", "examples", "docs")
FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
)
SOURCES = [file for file in FILES if file.endswith(".py") and file.startswith(("parallax/", "ops/"))]
READMES = [Path("CONTRIBUTING.md"), *(Path(file) for file in FILES if re.fullmatch(r"ops/\w+/README\.md", file))]

_PATH = re.compile(rf"(?:{'|'.join(FOLDERS)})/[\w./*{{}},-]*|[\w./-]*\w\.(?:py|cc|conf)\b")
_PLACEHOLDER = re.compile(r"(?:.*/)?[A-Z_\d]+\.\w+")


def named_in_page(text):
    """The paths in backticks outside of blocks, braces expanded."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    for span in re.findall(r"`([^`\n]+)`", prose):
        for word in span.split():
            if found := _PATH.match(word):
                yield from expanded(found[0].rstrip(".,"))


def expanded(path):
    """`a/{b,c}.py` is `a/b.py` and `a/c.py`."""
    braces = re.search(r"\{([^{}]*)\}", path)
    if not braces:
        return [path]
    return [path[: braces.start()] + part + path[braces.end() :] for part in braces[1].split(",")]


def named_in_source(source):
    """The Python files that docstrings and comments name."""
    if ".py" not in source:
        return []
    texts = [t.string for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type == tokenize.COMMENT]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            texts.append(node.value.value)
    return [name for text in texts for name in re.findall(r"[\w./-]*\w\.py\b", text)]


def leads_somewhere(name, folder, files):
    """Whether one file alone can be meant: a path from the root, one beside, or one whose path ends so."""
    if any(character in name for character in "*?"):
        return any((ROOT / folder).glob(name)) or any(ROOT.glob(name))
    if name.endswith("/"):
        return any(file.startswith(name) for file in files)
    if {name, f"{folder}/{name}"} & {*files} or any(file.startswith(f"{name}/") for file in files):
        return True
    return sum(file.endswith(f"/{name}") for file in files) == 1


def written_by_pages():
    """The files that readers write."""
    steps = [step for page in PAGES for step in steps_of((ROOT / page).read_text(encoding="utf-8"), str(page))]
    return {step.name for step in steps if isinstance(step, WriteFile)}


@pytest.mark.parametrize("page", [*PAGES, *READMES], ids=str)
def test_files_named_in_the_book_are_there(page):
    names = set(named_in_page((ROOT / page).read_text(encoding="utf-8"))) - written_by_pages()
    folder = page.parent.as_posix()
    assert [n for n in sorted(names) if not _PLACEHOLDER.fullmatch(n) and not leads_somewhere(n, folder, FILES)] == []


def test_files_named_in_docstrings_and_comments_are_there():
    of_readers = written_by_pages()
    wrong = [
        f"{file}: {name}"
        for file in SOURCES
        for name in named_in_source((ROOT / file).read_text(encoding="utf-8"))
        if not (name in of_readers or _PLACEHOLDER.fullmatch(name))
        and not leads_somewhere(name, file.rpartition("/")[0], FILES)
    ]
    assert wrong == []


def test_a_file_that_is_not_there_is_seen():
    files = ["a/b/c.py", "a/d/c.py", "a/d/e.py"]
    assert [n for n in ("a/b/c.py", "c.py", "e.py", "d/c.py", "a/b/") if not leads_somewhere(n, "a/b", files)] == []
    assert [n for n in ("c.py", "f.py", "b/e.py", "a/c/") if leads_somewhere(n, "a", files)] == []
    assert list(named_in_page("See `ops/{a,b}.py`, `x` and `y.py:f`.\n```\n`z.py`\n```\n")) == [
        "ops/a.py",
        "ops/b.py",
        "y.py",
    ]
    assert named_in_source('"""Of a.py."""\nb = "c.py"  # as d/e.py does\n') == ["d/e.py", "a.py"]


def test_the_tree_of_the_architecture_has_every_folder():
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    tree = text[text.index("## 3. The tree") : text.index("## 4.")]
    folders = {Path(file).parent for file in FILES if file.startswith("parallax/") and file.endswith(".py")}
    leaves = {folder.relative_to("parallax") for folder in folders - {f for folder in folders for f in folder.parents}}
    named = {Path(name) for name in re.findall(r"`([\w/]+)/`", tree)}
    assert {str(leaf) for leaf in leaves if not {leaf, *leaf.parents} & named} == set()
    here = {folder.relative_to("parallax") for folder in folders} | {Path("native")}
    rows = {Path(name) for row in re.findall(r"^\| (`[^|]*) \|", tree, re.MULTILINE) for name in row.split("`")[1::2]}
    assert {str(row) for row in rows if row not in here and row.suffix != ".py"} == set()
