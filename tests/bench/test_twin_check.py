"""What `python -m ops.bench twin` says of races made by hand."""

from dataclasses import replace

from ops.bench.twin.command import report
from tests.bench.races import race, ran


def lines():
    computed = race(2, 1000, [ran("parallax", 0.19, 0.2, 0.21), ran("horovod", 0.4)], compute_s=0.1)
    twin = race(2, 1000, [ran("parallax", 0.84, 0.8, 0.88), ran("horovod", problem="died")], compute_s=0.404)
    return list(report(computed, [replace(twin, dilation=4.0, device_s=0.4)], 50e6, 256))


def test_steps_are_undilated_and_compared_with_the_computed_ones():
    assert lines()[0].startswith(
        "stack on 2 hosts, links of 400 Mbit/s, 256 examples a worker; computing takes 100.0 ms"
    )
    assert lines()[1].split() == ["system", "computed", "twin,", "dilated", "4"]
    assert lines()[2].split() == ["parallax", "200.0", "ms", "(190-210)", "210.0", "ms", "(200-220),", "1.05"]


def test_a_system_that_failed_has_no_figure():
    assert lines()[3].split() == ["horovod", "400.0", "ms", "(400-400)", "failed"]


def test_the_last_line_is_without_any_exchange():
    assert lines()[-1].split() == ["(alone)", "100.0", "ms", "101.0", "ms"]
