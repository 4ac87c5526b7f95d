"""The plans of the published models, as `parallax plan` prints them; docs/published.md shows them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "published.md"
RESOURCE = "hosts.yaml"
HOSTS, WORKERS = 8, 6
MARKS = ("<unk>", "<s>", "</s>")
FIRST, LAST = 4, 8
"""First and last lines of a long plan that the page shows."""


@dataclass(frozen=True, slots=True)
class Published:
    """A model of the 2019 paper.

    Attributes:
        name: its name here.
        script: the example that defines it.
        flags: the options of its sizes.
        words: words of each of the two vocabularies that the script reads; 0 if it reads none.
    """

    name: str
    script: str
    flags: tuple[str, ...]
    words: int = 0

    @property
    def command(self) -> str:
        """The command as a user types it, in a folder with `hosts.yaml` and the vocabularies."""
        return " ".join(("parallax plan -r", RESOURCE, self.script, *self.flags))


LANGUAGE_MODEL = ("--vocab-size", "793470", "--width", "512", "--state", "2048", "--samples", "8192", "--unroll", "20")
MODELS = (
    Published("language model", "examples/nlp/language_model.py", (*LANGUAGE_MODEL, "--batch", "128")),
    Published(
        "translation model",
        "examples/nlp/translation.py",
        (
            "--data",
            "train",
            "--vocab",
            "vocab",
            "--width",
            "1024",
            "--state",
            "1024",
            "--layers",
            "3",
            "--batch",
            "128",
        ),
        words=36_549,
    ),
    Published(
        "ResNet-50", "examples/vision/image_classifier.py", ("--model", "resnet50", "--synthetic", "--batch", "64")
    ),
)


def resource_text() -> str:
    """Returns the resource file of the paper's machines: 8 hosts of 6 workers each."""
    return "hosts:\n" + "".join(f"  - {{address: host{number}, workers: {WORKERS}}}\n" for number in range(HOSTS))


def plan_text(model: Published, folder: Path) -> str:
    """Runs `parallax plan` for a model, and returns its output; no workers are started.

    Args:
        model: one of MODELS.
        folder: the folder for the files that the script reads.

    Raises:
        RuntimeError: the command fails.
    """
    (folder / RESOURCE).write_text(resource_text(), encoding="utf-8")
    if model.words:
        for language in ("en", "de"):
            words = [*MARKS, *(f"w{number}" for number in range(model.words - len(MARKS)))]
            (folder / f"vocab.{language}").write_text("\n".join(words) + "\n", encoding="utf-8")
            (folder / f"train.{language}").write_text("w0 w1\n", encoding="utf-8")
    argv = [sys.executable, "-m", "parallax.entry.cli", "plan", "-r", RESOURCE, str(ROOT / model.script), *model.flags]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": path}
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{model.command} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def shown(plan: str) -> str:
    """Abbreviates a plan as the page shows it: to the first and last lines of a long one."""
    lines = plan.splitlines(keepends=True)
    return plan if len(lines) <= FIRST + LAST + 1 else "".join([*lines[:FIRST], "...\n", *lines[-LAST:]])


def with_plans(page: str, made: Mapping[str, str]) -> str:
    """Returns a page with its plans replaced.

    Args:
        page: the text.
        made: command -> full output, which is abbreviated; commands that the page lacks are ignored.
    """
    blocks = page.split("```")
    for number in range(1, len(blocks), 2):
        command = blocks[number].removeprefix("console\n").partition("\n")[0].removeprefix("$ ")
        if command in made:
            blocks[number] = f"console\n$ {command}\n{shown(made[command])}"
    return "```".join(blocks)


def kept_plans(page: str) -> Iterator[tuple[str, str]]:
    """Yields (command, output) of the plans in a page: fenced blocks that begin with `$ parallax plan`."""
    for block in page.split("```")[1::2]:
        first, _, rest = block.removeprefix("console\n").partition("\n")
        if first.startswith("$ parallax plan"):
            yield first.removeprefix("$ "), rest
