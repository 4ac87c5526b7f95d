"""Models in stages on hosts of several workers."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tests.lab.conftest import SCRIPTS

pytestmark = pytest.mark.timeout(300)


def read_results(finished):
    status, stdout, stderr = finished
    assert status == 0, stdout + stderr
    return json.loads(next(line for line in stdout.splitlines() if line.startswith("FOUND "))[6:])


@pytest.mark.rotates
def test_a_fit_in_stages_of_which_each_has_a_host_is_plain_keras_s(lab, start):
    """Gradients outweigh activations here, so that consecutive workers have the same stage."""
    expected = read_results(start(SCRIPTS / "staged_fit.py", "none").finish())
    finished = start(SCRIPTS / "staged_fit.py", lab.resource_file(2)).finish()
    assert "consecutive workers have the same stage" in finished[1], finished
    for found, wanted in zip(tf.nest.flatten(read_results(finished)), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
