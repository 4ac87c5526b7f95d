"""The tier of tests that load no TensorFlow can be run, as `make check` does (conftest.py)."""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import ROOT, tier_of


def test_no_file_of_the_pure_tier_imports_tensorflow() -> None:
    argv = [sys.executable, "-m", "pytest", "-m", "pure", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


def test_a_file_is_of_the_tier_of_its_folder_or_of_what_it_names() -> None:
    files = {
        "tests/lab/test_lab.py": "lab",
        "tests/end_to_end/test_session.py": "job",
        "tests/exactness/test_exactness.py": "graph",
        "tests/analysis/test_planner.py": "pure",
    }
    assert {file: tier_of(ROOT / file) for file in files} == files
