"""The Keras examples: what they read, the models that they build, and a run of each."""

import importlib.util
import itertools
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from parallax import Config
from parallax.analysis.graph_to_plan import analyse, plan_for
from parallax.keras.fitting import read_fit
from parallax.plans.plan import one_host

EXAMPLES = Path(__file__).parents[2] / "examples"
DLRM, TEXTS = EXAMPLES / "recsys" / "dlrm_keras.py", EXAMPLES / "nlp" / "text_classifier_keras.py"


def loaded(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def dlrm():
    return loaded(DLRM)


@pytest.fixture(scope="module")
def texts():
    return loaded(TEXTS)


def criteo_line(click, numbers, categories):
    return "\t".join([click, *numbers, *categories]) + "\n"


@pytest.mark.parametrize(("name", "argv"), [("dlrm", ["--data", "a"]), ("texts", ["--test", "a"])])
def test_paths_of_both_kinds_of_data_belong_together(request, capsys, name, argv):
    with pytest.raises(SystemExit):
        request.getfixturevalue(name).parse_flags(argv)
    assert "belong together" in capsys.readouterr().err


def test_what_is_missing_in_a_line_of_criteos_is_zero(dlrm, tmp_path):
    file = tmp_path / "train.txt"
    whole = criteo_line("1", [str(n) for n in range(13)], [f"{16 * n:08x}" for n in range(26)])
    sparse = criteo_line("0", ["-2", *[""] * 12], ["", "ffffffff", *[""] * 24])
    file.write_text(whole + sparse)
    first, second = dlrm.lines_of(file, rows=100)()
    (numbers, categories), click = first
    np.testing.assert_allclose(numbers, np.log1p(np.arange(13)), rtol=1e-6)
    assert categories.tolist() == [16 * n % 100 for n in range(26)] and click.tolist() == [1.0]
    (numbers, categories), click = second
    assert numbers.tolist() == [0.0] * 13 and click.tolist() == [0.0]
    assert categories.tolist() == [0, 0xFFFFFFFF % 100, *[0] * 24]


def test_batches_go_on_from_the_beginning_of_a_file_that_is_shorter_than_one(dlrm, tmp_path):
    file = tmp_path / "train.txt"
    file.write_text("".join(criteo_line(click, [""] * 13, [""] * 26) for click in "101"))
    batches = dlrm.batches(dlrm.lines_of(file, 10), dlrm.parse_flags(["--batch", "4"]))
    clicks = [click.numpy().ravel().tolist() for _, click in itertools.islice(batches, 2)]
    assert clicks == [[1, 0, 1, 1], [0, 1, 1, 0]]


def test_generated_clicks_are_the_same_in_every_process_and_can_be_learned(dlrm):
    examples, best = dlrm.clicks(2, rows=50)
    again = dlrm.clicks(2, rows=50)[0]
    for one, other in zip(itertools.islice(examples(), 5), itertools.islice(again(), 5), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip((*one[0], one[1]), (*other[0], other[1]), strict=True))
    assert 0.65 < best(500) < 1


def test_the_recommenders_tables_are_held_by_row(dlrm):
    model = dlrm.dlrm(rows=50, width=4)
    model.compile("adagrad", "binary_crossentropy")
    data = dlrm.batches(dlrm.clicks(1, 50)[0], dlrm.parse_flags(["--batch", "8"]))
    fit = read_fit(model, {"x": data, "steps_per_epoch": 1})
    plan = plan_for(analyse(fit.graph.graph), one_host(2), Config())
    kinds = {one.name: one.cls for one in plan.variables}
    assert {kinds[f"category_{place}/embeddings"] for place in range(26)} == {"sparse"}


def test_texts_are_read_of_a_folder_for_each_class(texts, tmp_path):
    for name, text in {"neg/1.txt": "Bad, bad film", "pos/1.txt": "Good", "pos/2.txt": "it's fine"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "pos" / "index.csv").write_text("no text")
    assert sorted(texts.texts_in(tmp_path)) == [("neg", "Bad, bad film"), ("pos", "Good"), ("pos", "it's fine")]
    assert texts.texts_in(tmp_path) == texts.texts_in(tmp_path)
    assert texts.words_of("It's FINE: 3 stars") == ["it", "s", "fine", "stars"]


def test_texts_of_pythons_library_are_of_three_kinds(texts):
    found = texts.texts_of_python()
    assert {kind for kind, _ in found} == {"comment", "docstring", "code"} and len(found) > 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "score", "least"),
    [(DLRM, r"under the curve: (0\.\d+)", 0.6), (TEXTS, r"of which ([\d.]+) % are found", 60)],
    ids=["dlrm", "texts"],
)
def test_two_workers_learn_more_than_chance(path, score, least, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "parallax.entry.cli", "run", "--workers", "2", path],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert float(re.search(score, done.stdout)[1]) > least, done.stdout
