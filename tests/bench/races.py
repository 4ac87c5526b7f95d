"""Results made by hand: numbers that can be checked by eye."""

from ops.bench.race.results import Race, Ran, Results, Turn

RATE = 25e6  # 200 Mbit/s


def turns(*step_s, wire_bytes=0, hosts=2):
    """Rounds of ten steps; host 0 receives all that is counted, the others send a half each."""
    received = (10 * wire_bytes, *[0] * (hosts - 1)) if wire_bytes else ()
    sent = (0, *[5 * wire_bytes] * (hosts - 1)) if wire_bytes else ()
    return tuple(Turn(10, 10 * s, received, sent, cpu_s=0.5, switches=800) for s in step_s)


def ran(system, *step_s, wire_bytes=0, hosts=2, problem=""):
    rounds = turns(*step_s, wire_bytes=wire_bytes, hosts=hosts)
    return Ran(system, system != "tf-ps-async", rounds, (2.0, 1.0), (700_000_000, 600_000_000), problem)


def race(hosts, least_bytes, runs, rate=RATE, compute_s=0.005, model="embed"):
    settings = (("rows", 100000), ("skew", 1.3))
    formula = f"{hosts - 1}/{hosts} * 500 rows = {least_bytes:,} bytes"
    return Race(model, settings, hosts, 1, rate, 100 * hosts, "words", least_bytes, formula, compute_s, tuple(runs))


def two_and_four_hosts():
    """Least bytes 250 kB and 500 kB: 10 ms and 20 ms; so 20,000 words/s on two hosts and on four."""
    few = [
        ran("horovod", 0.040, 0.050, 0.030, wire_bytes=1_000_000),
        ran("parallax", 0.012, 0.0125, 0.011, wire_bytes=275_000),
        ran("tf-ps-async", 0.020, wire_bytes=500_000),
    ]
    many = [
        ran("horovod", 0.160, wire_bytes=4_000_000, hosts=4),
        ran("parallax", 0.025, 0.026, 0.024, wire_bytes=550_000, hosts=4),
        ran("tf-ps-async", 0.050, problem="worker 3 <a|b>\n  was killed by signal 9 & is gone"),
    ]
    return (race(2, 250_000, few), race(4, 500_000, many))


def results(*races):
    machine = "2 cores, 16 GB, Linux 6.1"
    return Results("python -m ops.bench race --hosts 2,4", machine, "2026-01-02T03:04:05", ("no <GPU> & no",), races)
