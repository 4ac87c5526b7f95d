"""Jobs that are killed in the middle of an epoch, an accumulation or a save go on as if nothing had been."""

import signal
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.timeout(600)

SCRIPT = Path(__file__).parent / "scripts" / "cut.py"


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("cut", "optimizer"),
    [
        ("save of worker 1", "Adagrad"),
        pytest.param("save", "Adagrad", marks=pytest.mark.slow),
        pytest.param("save", "all", marks=pytest.mark.slow),
        pytest.param("accumulation", "all", marks=pytest.mark.slow),
    ],
)
def test_what_is_cut_off_is_done_again_with_equal_values(start, tmp_path, cut, optimizer):
    files = [tmp_path / name for name in ("undisturbed.npz", "again.npz")]
    unfinished = tmp_path / "cut" / "model.ckpt-4.unfinished"

    def job(folder, cut, file):
        words = ("-m", "parallax.entry.cli", "run", "--workers", 2, SCRIPT, tmp_path / folder, cut, optimizer, file)
        return start(*words).finish(300)

    done = job("whole", "never", files[0])
    assert done.status == 0, str(done)
    done = job("cut", cut, files[1])
    assert done.status == 128 + signal.SIGKILL and not files[1].exists(), str(done)
    assert unfinished.exists() == cut.startswith("save"), str(done)
    done = job("cut", "never", files[1])
    assert done.status == 0 and done.stdout.count("Resumed from step 2") == 1, str(done)
    assert not unfinished.exists()
    with np.load(files[0]) as wanted, np.load(files[1]) as found:
        assert wanted.files == found.files and len(wanted.files) > (190 if optimizer == "all" else 8)
        for name in wanted.files:
            np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)
