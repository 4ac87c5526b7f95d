"""The book's command line: `python -m ops.book write`, `follow PAGE`, `newcomer`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from ops.book.follow import NotAsWritten, follow, reader_environment
from ops.book.generated import with_generated
from ops.book.newcomer import newcomer
from ops.book.pages import PAGES, ROOT
from parallax.settings.arguments import CommandParser


def main() -> int:
    """Runs the command line; returns the exit status."""
    parser = CommandParser(prog="python -m ops.book", description="Keeps the documentation true.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("write", help="write the generated parts of the pages")
    one = commands.add_parser("follow", help="follow the steps of a page in a new folder")
    one.add_argument("page", type=Path, help="for example docs/quick_start.md")
    one.add_argument("--slow", action="store_true", help="run the slow commands too")
    one.add_argument("--here", action="store_true", help="use this folder instead of a new one")
    path = commands.add_parser("newcomer", help="follow a newcomer's path in a clean clone of the last commit")
    path.add_argument("--environment", type=Path, metavar="DIR", help="use this environment instead of a new one")
    path.add_argument("--quick", action="store_true", help="skip the slow commands")
    arguments = parser.parse_args()
    try:
        if arguments.command == "write":
            _write()
        elif arguments.command == "newcomer":
            newcomer(arguments.environment, not arguments.quick)
        elif arguments.here:
            follow(arguments.page, Path.cwd(), reader_environment(), arguments.slow, say=True)
        else:
            with tempfile.TemporaryDirectory(prefix="parallax-book-") as folder:
                make_desk(Path(folder))
                follow(arguments.page, Path(folder), reader_environment(), arguments.slow, say=True)
    except NotAsWritten as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def make_desk(folder: Path) -> None:
    """Links the folders that pages name into a folder where their commands may write."""
    for name in ("examples", "ops"):
        (folder / name).symlink_to(ROOT / name)


def _write() -> None:
    for page in PAGES:
        path = ROOT / page
        text = path.read_text(encoding="utf-8")
        if (written := with_generated(text)) != text:
            path.write_text(written, encoding="utf-8")
            print(f"{page} was updated")


if __name__ == "__main__":
    sys.exit(main())
