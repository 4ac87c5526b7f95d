"""The benchmark of Keras's fit: its report, and that its spellings are one model."""

import numpy as np
import pytest

from ops.bench.keras.figures import Ratio, Step, Turn, ratio_of, report, step_of
from ops.bench.keras.script import keras_model
from ops.bench.race.models.recsys import RecSys

SMALL = RecSys(features=3, numbers=2, fewest_rows=5, most_rows=20, hidden=4, batch_size=6)


def test_a_step_is_that_of_the_median_epoch_without_the_first():
    assert step_of([9.0, 2.0, 1.0, 4.0], [9.0, 3.0, 3.0, 5.0], steps=10) == Step(0.2, 0.3)


def test_one_epoch_has_no_step():
    with pytest.raises(ValueError, match="from the second epoch on, but the job had 1"):
        step_of([9.0], [9.0], steps=10)


def test_a_ratio_is_that_of_turns_and_has_their_spread():
    assert ratio_of([2.0, 3.0, 8.0], [1.0, 2.0, 2.0]) == Ratio(median=2.0, least=1.5, most=4.0)


def test_the_report_says_what_each_took_and_whether_it_is_what_is_asked():
    turns = [
        Turn(graph=Step(0.10, 0.20), merged=Step(0.103, 0.30), apart=Step(0.206, 0.30)),
        Turn(graph=Step(0.12, 0.20), merged=Step(0.120, 0.26), apart=Step(0.120, 0.39)),
    ]
    lines = list(report(turns, workers=2))
    assert lines[0] == "A step of 2 workers, median of 2 jobs of each:"
    assert [line.split() for line in lines[1:5]] == [
        ["seconds", "processor", "s"],
        ["TF1", "graph", "0.1100", "0.2000"],
        ["fit,", "merge_rows=True", "0.1115", "0.2800"],
        ["fit", "0.1630", "0.3450"],
    ]
    apart = "fit with equal rows apart takes 1.{} times (1.000 to {}) those with merged rows."
    assert lines[5:] == [
        "Seconds: fit with merged rows takes 1.015 times (1.000 to 1.030) the graph's, within the target, 1.05.",
        f"Seconds: {apart.format('500', '2.000')}",
        "Processor seconds: fit with merged rows takes 1.400 times (1.300 to 1.500) the graph's, NOT within the "
        "target, 1.05.",
        f"Processor seconds: {apart.format('250', '1.500')}",
    ]


def test_the_keras_model_takes_the_batches_of_the_race_and_has_its_variables():
    model, batch = keras_model(SMALL), SMALL.batch(0, 0)
    clicks = batch.pop("clicks")
    assert model(batch).shape == (*clicks.shape, 1)
    tables = {one.path: tuple(one.shape) for one in model.trainable_variables if "table" in one.path}
    assert tables == {f"{table.name}/embeddings": (table.rows, table.width) for table in SMALL.tables}
    assert [tuple(one.shape) for one in model.trainable_variables[-6:]] == [
        *((2 + sum(table.width for table in SMALL.tables), 4), (4,), (4, 2), (2,), (2, 1), (1,)),
    ]
    np.testing.assert_array_less(0, model.evaluate(batch, clicks, verbose=0))
