"""What a calibration measures, the fit, the file and the command's errors; without a cluster."""

import json

import numpy as np
import pytest

from parallax.base.errors import LaunchError, PlanError
from parallax.cluster.profiles import OPERATIONS, ClusterProfile, HostProfile, cluster_profile_from_json
from parallax.entry.cli import main
from parallax.plans.sum_methods import ANY_BYTES, METHODS, SumRule, SumRules
from parallax.runtime.calibrate.command import _RankOutput
from parallax.runtime.calibrate.least_squares import Measurements, TimedPoint, TimedSum, errors_of, fit_line, profile_of
from parallax.runtime.calibrate.points import ACROSS, SERVER_ROWS, WITHIN, Group, Point, groups_of, points_of
from parallax.runtime.calibrate.sum_points import SumTeam, drop_slow, methods_of, sizes_of, sum_teams
from parallax.runtime.calibrate.table import profile_table
from parallax.runtime.supervisor.sealed_files import sealed_value
from tests.mutations import for_all, mutated_json

FAST = 25_000_000.0
BASE_S, PER_PEER_S, BYTE_S = 1e-3, 2e-4, 5e-9


def hosts_of(*rates):
    return tuple(HostProfile(f"h{number}", 2, 8 << 30, rate, rate) for number, rate in enumerate(rates))


def samples_of(hosts, members, noise=0.0, operation="alltoall", held_out=False, overlap=0.0):
    """Measurements of a cluster that is as the form of the fit says, with relative noise."""
    random = np.random.default_rng(1)
    found = []
    for n in members:
        rate = min(host.out_bytes_per_s for host in hosts[:n])
        for size in (1e3, 1e4, 3e4, 1e5, 1e6):
            latency, on_link = BASE_S + PER_PEER_S * (n - 1), size / rate
            seconds = latency + BYTE_S * size + on_link - overlap * min(latency, on_link)
            point = Point(ACROSS, n, operation, 1, size, held_out)
            found.append(TimedPoint(point, seconds * (1 + noise * random.uniform(-1, 1))))
    return found


# --- what is measured ---


def test_the_first_hosts_are_measured_two_four_and_all_of_them():
    groups = groups_of((0, 1, 2, 3, 4, 5), quick=False)
    assert groups == (
        Group(ACROSS, 2, ((0, 1),), 2),
        Group(ACROSS, 4, ((0, 1, 2, 3),), 4),
        Group(ACROSS, 6, ((0, 1, 2, 3, 4, 5),), 6),
    )
    assert [group.members for group in groups_of((0, 1, 2, 3, 4, 5), quick=True)] == [2, 6]
    assert [group.members for group in groups_of((0, 1), quick=False)] == [2]


def test_across_hosts_each_takes_part_with_one_worker_and_within_them_all_are_at_it_at_once():
    groups = groups_of((0, 0, 1, 1, 1, 2), quick=False)
    assert groups == (
        Group(ACROSS, 2, ((0, 2),), 2),
        Group(ACROSS, 3, ((0, 2, 5),), 3),
        Group(WITHIN, 2, ((0, 1), (2, 3)), 0),
        Group(WITHIN, 3, ((2, 3, 4),), 0),
    )
    assert [groups[2].team_of(rank) for rank in range(6)] == [0, 0, 1, 1, None, None]


def test_one_host_has_nothing_across_and_its_server_is_measured_within():
    assert groups_of((0, 0), quick=False) == (Group(WITHIN, 2, ((0, 1),), 1),)


def test_bytes_are_those_of_the_busiest_link():
    found = {point.operation: point for point in points_of(Group(ACROSS, 4, ((0, 1, 2, 3),), 4), FAST, False)}
    assert set(found) == set(OPERATIONS)
    per_count = {operation: point.link_bytes / point.count for operation, point in found.items()}
    # 2 (n - 1) / n of 4 bytes; three times a row of 256 bytes, a value of 4, a row with its id of 4 or 8
    assert per_count == {"allreduce": 6, "alltoall": 768, "allgather": 12, "pull": 780, "push": 792}


def test_a_slower_link_gets_smaller_sizes_and_one_size_is_held_out():
    group = Group(ACROSS, 2, ((0, 1),), 2)
    for rate, top in ((FAST, 1 << 19), (FAST / 5, 1 << 17), (1e4, 1 << 16), (1e12, 1 << 22)):
        sizes = [point.link_bytes for point in points_of(group, rate, False) if point.operation == "allreduce"]
        assert (max(sizes), len(sizes)) == (top, 6)
        held_out = [p for p in points_of(group, rate, False) if p.operation == "allreduce" and p.is_held_out]
        assert [point.link_bytes for point in held_out] == [top / 2]


def test_no_point_comes_twice_nor_needs_more_rows_than_a_server_has():
    for group in (*groups_of(tuple(range(253)), False), *groups_of((0,) * 4, False)):
        for rate in (None, 1e4, 1e12):
            points = points_of(group, rate, False)
            assert len({(point.operation, point.count) for point in points}) == len(points)
            assert all(1 <= p.count and (p.operation not in ("pull", "push") or p.count <= SERVER_ROWS) for p in points)


# --- the fit ---


def test_noise_leaves_the_coefficients_of_a_cluster_as_they_are():
    hosts = hosts_of(*[FAST] * 8)
    line = fit_line(samples_of(hosts, (2, 4, 8), noise=0.02), hosts)
    assert (line.base_s, line.per_peer_s, line.byte_s) == pytest.approx((BASE_S, PER_PEER_S, BYTE_S), rel=0.1)
    assert 0.001 < line.residual < 0.02
    assert line.samples == 15


@pytest.mark.parametrize("overlap", [0.0, 0.4, 1.0])
def test_what_passes_at_the_same_time_is_found(overlap):
    hosts = hosts_of(*[FAST] * 8)
    line = fit_line(samples_of(hosts, (2, 4, 8), overlap=overlap), hosts)
    assert (line.base_s, line.per_peer_s, line.byte_s) == pytest.approx((BASE_S, PER_PEER_S, BYTE_S), rel=1e-3)
    assert line.overlap == pytest.approx(overlap, abs=1e-3)
    assert line.seconds(4, 1e5, FAST) == pytest.approx(samples_of(hosts, (4,), overlap=overlap)[3].seconds, rel=1e-3)


def test_each_sample_is_charged_the_slowest_link_among_its_members():
    hosts = hosts_of(FAST, FAST, FAST, FAST / 5)
    line = fit_line(samples_of(hosts, (2, 4)), hosts)
    assert (line.base_s, line.per_peer_s, line.byte_s) == pytest.approx((BASE_S, PER_PEER_S, BYTE_S), rel=1e-4)
    assert line.residual < 1e-6


def test_of_two_hosts_only_the_latency_per_peer_is_in_the_base():
    hosts = hosts_of(FAST, FAST)
    line = fit_line(samples_of(hosts, (2,)), hosts)
    assert (line.base_s, line.per_peer_s) == (pytest.approx(BASE_S + PER_PEER_S, rel=1e-4), 0.0)
    assert line.seconds(2, 1e5, FAST) == pytest.approx(BASE_S + PER_PEER_S + 1e5 * BYTE_S + 1e5 / FAST, rel=1e-4)


def test_what_is_faster_than_its_link_gets_no_negative_cost():
    hosts = hosts_of(FAST, FAST)
    faster = [TimedPoint(sample.point, 0.5 * sample.point.link_bytes / FAST) for sample in samples_of(hosts, (2,))]
    line = fit_line(faster, hosts)
    assert min(line.base_s, line.per_peer_s, line.byte_s) >= 0
    assert line.seconds(2, 1e6, FAST) == pytest.approx(1e6 / FAST, rel=1e-3)
    assert line.residual == pytest.approx(1.0, rel=1e-3)


def test_what_is_held_out_is_not_fitted_but_predicted():
    hosts = hosts_of(*[FAST] * 4)
    fitted = samples_of(hosts, (2, 4))
    held_out = [TimedPoint(sample.point, 2 * sample.seconds) for sample in samples_of(hosts, (2,), held_out=True)]
    machines, links = ((2, 8 << 30),) * 4, ((FAST, FAST),) * 4
    profile = profile_of([host.name for host in hosts], Measurements(machines, links, (*fitted, *held_out), 1.0))
    assert profile.across["alltoall"] == fit_line(fitted, hosts)
    assert errors_of(profile, held_out) == {(ACROSS, "alltoall"): pytest.approx([-0.5] * 5, rel=1e-3)}


# --- the profile ---


def measured(slowdown=4.0):
    hosts = hosts_of(FAST, FAST, FAST / 5)
    samples = [
        *(sample for op in OPERATIONS for sample in samples_of(hosts, (2, 3), operation=op)),
        *samples_of(hosts, (2,), held_out=True),
        *(TimedPoint(Point(WITHIN, 2, "allreduce", 1, size), BASE_S + BYTE_S * size) for size in (1e3, 1e6)),
    ]
    rates = tuple((host.out_bytes_per_s, host.in_bytes_per_s) for host in hosts)
    return Measurements(((2, 8 << 30),) * 3, rates, tuple(samples), slowdown)


def test_a_profile_is_read_as_it_was_written():
    profile = profile_of(["a", "b", "c"], measured())
    assert cluster_profile_from_json(profile.to_json()) == profile
    assert profile.to_json() == profile_of(["a", "b", "c"], measured()).to_json()
    raw = json.loads(profile.to_json())
    assert list(raw) == ["across", "hosts", "shared_cores", "version", "within"]
    assert list(raw["across"]) == sorted(OPERATIONS) and list(raw["within"]) == ["allreduce"]
    assert list(raw["across"]["pull"]) == ["base_s", "byte_s", "overlap", "per_peer_s", "residual", "samples"]
    assert [host["out_bytes_per_s"] for host in raw["hosts"]] == [FAST, FAST, FAST / 5]


def test_hosts_share_cores_where_computing_at_once_takes_longer():
    assert profile_of(["a", "b", "c"], measured(slowdown=1.5)).shared_cores == 2.0
    assert profile_of(["a", "b", "c"], measured(slowdown=1.1)).shared_cores is None


def test_the_table_shows_links_fits_and_the_error_of_what_was_held_out(golden):
    values = measured(slowdown=1.5)
    held_out = [sample for sample in values.samples if sample.point.is_held_out]
    golden("calibrate_table.txt", profile_table(profile_of(["a", "b", "c"], values), held_out))


@pytest.mark.parametrize(("times", "warned"), [(1.2, False), (1.5, True), (0.5, True)])
def test_large_errors_of_what_was_held_out_are_warned_of(times, warned):
    values = measured()
    held_out = [sample for sample in values.samples if sample.point.is_held_out]
    slower = [TimedPoint(sample.point, times * sample.seconds) for sample in held_out]
    text = profile_table(profile_of(["a", "b", "c"], values), slower)
    words = "WARNING: predictions are off by more than 25% for alltoall across hosts"
    assert (words in text) == warned and ("Measure again while nothing else runs" in text) == warned


# --- the command ---


def told(*messages):
    found = _RankOutput()
    text = b"".join(b"[0] " + sealed_value(message) for message in messages)
    for cut in range(0, len(text), 7):
        found.write(text[cut : cut + 7])
    found.close()
    return found


SAMPLE = TimedPoint(Point(ACROSS, 2, "pull", 3, 780.0), 0.25)
MESSAGES = (
    {"kind": "hosts", "found": [[2, 100], [4, 200]]},
    {"kind": "links", "found": [[1.0, 2.0], [3.0, 4.0]]},
    {
        "kind": "sample",
        "seconds": 0.25,
        "point": {
            "where": "across",
            "members": 2,
            "operation": "pull",
            "count": 3,
            "link_bytes": 780.0,
            "is_held_out": False,
        },
    },
    {"kind": "slowdown", "found": 1.5},
)


def test_what_rank_0_tells_is_taken_in_however_it_is_cut():
    assert told(*MESSAGES).measurements() == Measurements(
        ((2, 100), (4, 200)), ((1.0, 2.0), (3.0, 4.0)), (SAMPLE,), 1.5
    )


def test_other_output_of_ranks_goes_to_stderr(capfd):
    _RankOutput().write(b"[1] a library says\n[0] this\n")
    assert capfd.readouterr() == ("", "[1] a library says\n[0] this\n")


@pytest.mark.parametrize("missing", [0, 2, 3])
def test_a_job_that_ends_without_results_makes_no_profile(missing):
    with pytest.raises(LaunchError, match="without results"):
        told(*(message for number, message in enumerate(MESSAGES) if number != missing)).measurements()


def refused(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(["calibrate", *map(str, words)])
    assert ended.value.code == 1
    return capsys.readouterr().err


def test_a_resource_file_that_cannot_be_read_is_named(capsys, tmp_path):
    assert f"{tmp_path}/none: cannot read the resource file" in refused(capsys, "-r", tmp_path / "none", "-o", "x.json")
    (tmp_path / "bad").write_text("host0: x\n")
    assert f"{tmp_path}/bad:1: " in refused(capsys, "-r", tmp_path / "bad", "-o", "x.json")


def test_one_worker_has_nothing_to_measure(capsys, tmp_path):
    (tmp_path / "one").write_text("host0 slots=1\n")
    words = "measures the exchange between workers, but there is only one worker, on host0"
    assert words in refused(capsys, "-r", tmp_path / "one", "-o", tmp_path / "x.json")
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_an_output_that_cannot_be_written_is_refused_before_the_measurement(capsys, tmp_path):
    assert f"{tmp_path}: it is a folder" in refused(capsys, "--workers", 2, "-o", tmp_path)
    gone = tmp_path / "none" / "x.json"
    assert f"{gone}: No such file or directory" in refused(capsys, "--workers", 2, "-o", gone)
    assert list(tmp_path.iterdir()) == []


def test_a_profile_is_derived_for_the_hosts_of_a_resource_file(capsys, tmp_path):
    hosts = hosts_of(FAST, FAST)
    line = fit_line(samples_of(hosts, (2,)), hosts)
    measured = ClusterProfile(1, hosts, {"alltoall": line}, {}, 1.8)
    (tmp_path / "known.json").write_text(measured.to_json())
    entries = "".join(f"  - {{address: n{number}, workers: 1, bandwidth: 80mbit}}\n" for number in range(3))
    (tmp_path / "new.yaml").write_text(f"hosts:\n{entries}")
    words = ["--from", tmp_path / "known.json", "-r", tmp_path / "new.yaml", "-o", tmp_path / "new.json"]
    for more, shared in (([], None), (["--share-cores"], 1.8)):
        with pytest.raises(SystemExit) as ended:
            main(["calibrate", *map(str, words), *more])
        assert ended.value.code == 0
        found = cluster_profile_from_json((tmp_path / "new.json").read_text())
        assert [(host.name, host.out_bytes_per_s) for host in found.hosts] == [(f"n{n}", 1e7) for n in range(3)]
        assert found.across == {"alltoall": line} and found.shared_cores == shared
    assert "n2       2        8.6          80.0             80.0" in capsys.readouterr().out


def test_a_profile_is_derived_from_profiles_and_for_a_resource_file(capsys, tmp_path):
    (tmp_path / "known.json").write_text("{}")
    assert "-r FILE" in refused(capsys, "--from", _known(tmp_path), "-o", tmp_path / "x.json")
    assert "must have version" in refused(capsys, "--from", tmp_path / "known.json", "-o", tmp_path / "x.json")
    assert "--share-cores needs --from" in refused(capsys, "--share-cores", "-o", tmp_path / "x.json")


def _known(folder):
    file = folder / "two.json"
    file.write_text(ClusterProfile(1, hosts_of(FAST, FAST), {}, {}).to_json())
    return file


TOTAL = {"kind": "total", "visits": 3}


@pytest.mark.rotates
@pytest.mark.parametrize("message", [*MESSAGES, TOTAL, {"kind": "visited", "visits": 1}], ids=lambda one: one["kind"])
def test_a_mutated_message_of_rank_0_is_refused_in_words_or_of_the_right_types(message):
    lines = [one for one in MESSAGES if one is not message]

    def check(text):
        try:
            told(TOTAL, *lines, json.loads(text)).measurements()
        except LaunchError as error:
            assert str(error).isprintable()
        except (json.JSONDecodeError, RecursionError):  # not what could be sealed
            return

    for_all(40, check, mutated_json(json.dumps(message)))


def test_a_damaged_message_of_rank_0_is_refused():
    with pytest.raises(LaunchError, match="sent a damaged message: its .* do not have the checksum"):
        _RankOutput().write(b"[0] " + sealed_value(MESSAGES[3]).replace(b"1.5", b"2.5"))


# --- sums ---


def timed_sums(workers_by_host, seconds_by_method, sizes=(64, 4096, 262144)):
    return [
        TimedSum(workers_by_host, method, size, took_s)
        for method, seconds in seconds_by_method.items()
        for size, took_s in zip(sizes, seconds, strict=False)
    ]


def test_sums_are_measured_among_all_workers_and_where_hosts_have_several_within_and_across_hosts():
    assert sum_teams((1, 1, 1)) == (SumTeam("workers", (1, 1, 1)),)
    assert sum_teams((4,)) == (SumTeam("workers", (4,)),)
    two_each = SumTeam("workers", (2, 2)), SumTeam("host", (2,)), SumTeam("leaders", (1, 1))
    assert sum_teams((2, 0, 2)) == two_each
    assert sum_teams((3, 1)) == (SumTeam("workers", (3, 1)), SumTeam("leaders", (1, 1)))
    assert methods_of((1, 1)) == ("doubling", "ring", "halving")
    assert methods_of((1, 2)) == METHODS


def test_sizes_of_sums_are_from_64_bytes_to_4_megabytes_and_slow_methods_drop_out_where_bytes_count():
    assert sizes_of(quick=False) == tuple(64 * 4**power for power in range(9))
    assert sizes_of(quick=True) == (64, 1024, 16384, 262144, 4194304)
    assert drop_slow(1024, {"ring": 9.0, "leader": 1.0}) == ("ring", "leader")
    assert drop_slow(65536, {"ring": 3.1, "leader": 1.0, "slices": 2.9}) == ("leader", "slices")


def test_a_profile_has_the_sums_their_fit_and_the_fastest_methods_and_is_read_as_it_was_written():
    hosts = hosts_of(FAST, FAST)
    by_leader = [1e-3 + 1.0 * size / FAST for size in (64, 4096, 262144)]
    seconds = {"ring": [3e-3, 4e-3], "leader": by_leader, "slices": [2e-3, 2e-3, 2e-2]}
    measured = Measurements(
        tuple((2, 8 << 30) for _ in hosts),
        tuple((FAST, FAST) for _ in hosts),
        tuple(samples_of(hosts, (2,))),
        1.0,
        tuple(timed_sums((2, 2), seconds)),
    )
    profile = profile_of(("h0", "h1"), measured)
    (sums,) = profile.sums
    assert sums.seconds["ring"] == (3e-3, 4e-3) and sums.sizes_bytes == (64, 4096, 262144)
    assert sums.rules == SumRules((2, 2), (SumRule(ANY_BYTES, "leader"),))
    assert sums.line.seconds(2, 262144, FAST) == pytest.approx(by_leader[-1], rel=0.02)
    assert profile.sums_of((2, 0, 2)) == sums and profile.sums_of((2, 2, 2)) is None
    assert cluster_profile_from_json(profile.to_json()) == profile
    told = profile_table(profile)
    assert "Sums among 2 + 2 workers of 2 hosts, ms by method:" in told
    assert "    262144         -    11.486    20.000  leader" in told


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("seconds",), {"sideways": [1.0, 1.0]}, "sideways"),
        (("seconds",), {"ring": [1.0]}, "some method has all, and each the first"),
        (("sizes_bytes",), [64, 64], "at least two sizes, rising"),
        (("seconds",), {"ring": [0.0, 1.0]}, "more than 0 s"),
    ],
)
def test_sums_that_nobody_measured_are_refused(path, value, said):
    line = {"base_s": 1.0, "per_peer_s": 0.0, "byte_s": 0.0, "residual": 0.0, "samples": 2}
    sums = {"workers_by_host": [2], "sizes_bytes": [64, 128], "seconds": {"ring": [1.0, 1.0]}, "line": line}
    sums[path[0]] = value
    raw = json.loads(ClusterProfile(1, hosts_of(FAST), {}, {}).to_json()) | {"sums": [sums]}
    with pytest.raises(PlanError, match=said):
        cluster_profile_from_json(json.dumps(raw))
