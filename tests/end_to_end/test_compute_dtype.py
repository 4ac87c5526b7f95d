"""Products in bfloat16: what is computed in it, what is not, and what is said where nothing is."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from parallax.plans.half_precision import BFLOAT16, ROUNDING
from parallax.runtime.worker.session.bfloat16 import INSTRUCTIONS, has_instructions
from parallax.settings.environment import onednn_is_off

pytestmark = pytest.mark.timeout(240)

SCRIPT = Path(__file__).parent / "scripts" / "computed.py"
CLI = ("-m", "parallax.entry.cli")
STEPS = 12
KEPT = ("Horovod", "Parallax", "Apply", "Assign", "Scatter", "Variable", "VarHandle", "Accumulator", "L2Loss")
"""In the names of ops that send, hold, add up, update or measure."""

MOVING = {"Cast", "Identity", "Reshape", "Shape", "GatherV2", "ExpandDims", "Squeeze", "_Send", "_Recv"}
MOVING |= {"SelectV2", "Const"}  # of a worker without examples, zeros
"""What may be in bfloat16 beside products."""

needs_bfloat16 = pytest.mark.skipif(
    not has_instructions() or onednn_is_off(),
    reason=f"products in bfloat16 need oneDNN and a processor with one of {', '.join(INSTRUCTIONS)}",
)


@pytest.fixture
def computed(start, write, tmp_path):
    """What two workers computed with some settings, session options and words of the command line."""

    def computed(*words, settings=None, options=None, servers=0, steps=STEPS, **environment):
        write("machines", f"hosts:\n- address: localhost\n  workers: 2\n  servers: {servers}\n")
        file, given = tmp_path / "values.npz", [json.dumps(options)] * (options is not None)
        arguments = (SCRIPT, json.dumps(settings or {}), file, steps, *given)
        done = start(*CLI, "run", "-r", "machines", *words, *arguments, **environment).finish(200)
        assert done.status == 0, str(done)
        with np.load(file) as values:
            return done, dict(values)

    return computed


def rounded(value):
    """To the nearest bfloat16, as float32."""
    return value.astype(tf.bfloat16.as_numpy_dtype).astype(np.float32)


@pytest.mark.rotates
@needs_bfloat16
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="workers"),
        pytest.param({"run_option": "PS"}, id="servers", marks=pytest.mark.slow),
    ],
)
def test_products_are_rounded_and_what_travels_or_stays_is_not(computed, settings):
    servers = 1 * bool(settings)
    done, found = computed("--compute-dtype", BFLOAT16, settings=settings, servers=servers)
    assert "compute_dtype: 3 of 3 matrix products and convolutions of a step are computed in bfloat16." in done.stderr
    assert done.stderr.count("compute_dtype") == 1, str(done)
    seen, exact = found["seen"], rounded(found["rows"]).astype(np.float64) @ rounded(found["weights"])
    np.testing.assert_array_equal(seen, rounded(seen))
    np.testing.assert_allclose(seen, exact, rtol=1.01 * ROUNDING[BFLOAT16], atol=1e-6)
    types = list(found["types"])
    assert any("MatMul bfloat16" in one for one in types), types
    computing = [one for one in types if one.endswith(BFLOAT16) and "MatMul" not in one]
    assert {one.split()[0] for one in computing} <= MOVING, computing
    kept = [one for one in types if any(name in one for name in KEPT)]
    assert kept and not any(one.endswith(BFLOAT16) for one in kept), kept
    for name in ("weights", "emb"):
        assert (found[name] != rounded(found[name])).mean() > 0.9, name

    plain, wanted = computed(settings=settings, servers=servers)
    nothing_is_in_bfloat16_and_nothing_said(plain, wanted)
    assert found["report"] == wanted["report"]
    # An element of a product is wrong by up to three roundings (its factors and itself), but these go both ways: a mean
    # of 256 squares, and STEPS updates made of such means, move it by less than one.
    bound = ROUNDING[BFLOAT16] * wanted["losses"][0]
    assert np.abs(found["losses"] - wanted["losses"]).max() < bound, (found["losses"], wanted["losses"])
    assert (found["losses"] != wanted["losses"]).mean() > 0.5, (found["losses"], wanted["losses"])


def nothing_is_in_bfloat16_and_nothing_said(done, found):
    assert not any(one.endswith(BFLOAT16) for one in found["types"]), found["types"]
    assert "compute_dtype" not in done.stderr + done.stdout


@pytest.mark.skipif(not needs_bfloat16.args[0], reason="compared with a job that has the setting")
def test_nothing_is_computed_in_bfloat16_without_the_setting_and_nothing_said(computed):
    nothing_is_in_bfloat16_and_nothing_said(*computed(steps=1))


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("options", "environment", "why"),
    [
        (None, {"TF_ENABLE_ONEDNN_OPTS": "0"}, "which TF_ENABLE_ONEDNN_OPTS=0 turns off. Take that out of"),
        pytest.param(
            {"graph_options": {"rewrite_options": {"disable_meta_optimizer": True}}},
            {},
            "Do not turn it off in sess_config",
            marks=[needs_bfloat16, pytest.mark.slow],  # the cause in words: tests/runtime/worker/test_bfloat16.py
        ),
    ],
    ids=["oneDNN off", "sess_config"],
)
def test_where_it_has_no_effect_the_log_says_so_and_why(computed, options, environment, why):
    done, found = computed(settings={"compute_dtype": BFLOAT16}, options=options, steps=2, **environment)
    said = [line for line in done.stderr.splitlines() if "compute_dtype" in line]
    assert len(said) == 1 and said[0].startswith("[0] PARALLAX WARNING: compute_dtype has no effect here: "), str(done)
    assert "all 3 products of a step stay float32: " in said[0] and why in said[0], said
    assert not any(one.endswith(BFLOAT16) for one in found["types"]), found["types"]


@pytest.mark.rotates
@needs_bfloat16
def test_workers_and_one_process_are_verified_to_be_equal_in_bfloat16(start):
    model = SCRIPT.parent / "model.py"
    options = ("--compute-dtype", BFLOAT16, "--feeds", f"{model}:feeds", "--steps", 3)
    done = start(*CLI, "verify", *options, model).finish()
    assert done.status == 0, str(done)
    assert "compute_dtype: 3 of 3 matrix products" in done.stderr, str(done)
    assert done.stdout.splitlines()[-1].endswith(", tolerance 1e-02"), str(done)
