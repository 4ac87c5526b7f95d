"""Steps that overlap give what steps one after the other give, bit for bit, as a job shows it."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.timeout(300)

SCRIPT = Path(__file__).parent / "scripts" / "overlapping.py"


@pytest.mark.rotates
@pytest.mark.parametrize("has_hooks", [False, True], ids=["alone", "hooks"])
def test_steps_that_overlap_change_no_value(start, tmp_path, has_hooks):
    seen, read = {}, {}
    for overlap in ("on", "off"):
        folder = [tmp_path / overlap] if has_hooks else []
        done = start("-m", "parallax.entry.cli", "run", "--workers", 2, SCRIPT, overlap, *folder).finish()
        assert done.status == 0, str(done)
        assert "Steps do not overlap" not in done.stderr, str(done)
        seen[overlap] = [done.lines(rank) for rank in (0, 1)]
        assert all(len([line for line in lines if line.startswith("step")]) == 30 for lines in seen[overlap])
        if has_hooks:
            last = tf.train.latest_checkpoint(str(tmp_path / overlap))
            names = [name for name, _ in tf.train.list_variables(last)]
            read[overlap] = {name: tf.train.load_variable(last, name) for name in names if "parallax" not in name}
            steps = [path.name for path in (tmp_path / overlap).glob("*.index")]
            assert len(steps) >= 4, steps
    assert seen["on"] == seen["off"]
    if has_hooks:
        assert read["on"].keys() == read["off"].keys()
        for name, value in read["on"].items():
            np.testing.assert_array_equal(value, read["off"][name])
