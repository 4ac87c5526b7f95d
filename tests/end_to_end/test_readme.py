"""The README's script and commands, as they are written there."""

import re
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SCRIPT = re.search(r"```python\n(.*?)```", README, re.DOTALL).group(1)


def test_the_script_of_the_readme_runs_on_two_workers(start, write):
    done = start("-m", "parallax.cli", "run", "--workers", "2", write("train.py", SCRIPT)).finish()
    assert done.status == 0, done
    assert re.search(r"^\[0\] loss 0\.\d+, table \(10000, 64\)$", done.stdout, re.MULTILINE), done


def test_the_script_of_the_readme_is_equal_to_one_process(start, write):
    write("train.py", SCRIPT)
    assert "parallax verify --feeds train.py:batch train.py" in README
    done = start("-m", "parallax.cli", "verify", "--feeds", "train.py:batch", "train.py").finish()
    assert done.status == 0, done
    assert "2 workers and one process are equal after 5 steps" in done.stdout, done
