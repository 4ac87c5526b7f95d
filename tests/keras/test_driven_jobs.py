"""A `fit` whose workers never run the script: what is around it is done once, and failures end it and nothing else."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from parallax.base.errors import LaunchError
from parallax.runtime.driver_channel import ChannelClosed, DriverAddress, DriverSocket, connect
from tests.end_to_end.conftest import CLI, start, warm_server, warm_workers, write  # noqa: F401
from tests.keras.test_fit_jobs import SCRIPTS, differences, found_in


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_script_runs_once_around_its_fits(start, tmp_path, workers):  # noqa: F811
    here, plain = tmp_path / "here", tmp_path / "plain"
    here.mkdir()
    plain.mkdir()
    running = start(*CLI, "run", "--workers", workers, SCRIPTS / "fit_once.py", "job", here)
    expected = found_in(start(SCRIPTS / "fit_once.py", "plain", plain, plain=True).finish())
    done = running.finish(240)
    parts = differences(found_in(done), expected)
    assert max(parts.values()) <= 1e-5, parts
    assert done.stdout.count("BEFORE") == 1


@pytest.mark.rotates
@pytest.mark.parametrize("kind", ["large", pytest.param("workers", marks=pytest.mark.rotates)])
def test_workers_evaluate_and_predict_what_the_script_would(start, tmp_path, kind):  # noqa: F811
    running = start(*CLI, "run", "--workers", 2, SCRIPTS / "fit_and_evaluate.py", kind, tmp_path)
    expected = found_in(start(SCRIPTS / "fit_and_evaluate.py", "plain", tmp_path, plain=True).finish())
    done = running.finish(240)
    found = found_in(done)
    if kind == "large":
        del expected["compiled anew"]
    parts = differences(found, expected)
    assert max(parts.values()) <= 1e-5, parts
    assert done.stdout.count("Plan for 2 workers") == 4, done  # of the first fit, with weights, and of two predictions


@pytest.mark.rotates
@pytest.mark.parametrize("kind", ["away", pytest.param("here", marks=pytest.mark.slow)])
def test_rows_that_workers_make_are_those_that_the_script_makes(start, kind):  # noqa: F811
    running = start(*CLI, "run", "--workers", 3, SCRIPTS / "fit_mapped.py", kind)
    expected = found_in(start(SCRIPTS / "fit_mapped.py", "plain", plain=True).finish())
    done = running.finish(240)
    parts = differences(found_in(done), expected)
    assert max(parts.values()) <= 1e-5, parts
    assert done.stderr.count("return other rows on another machine") == (kind == "away")


@pytest.mark.rotates
@pytest.mark.new_workers  # they are found below the script
def test_a_worker_that_is_killed_ends_the_fit_with_the_status_of_its_job(start, tmp_path):  # noqa: F811
    done = start(*CLI, "run", "--workers", 2, SCRIPTS / "fit_once.py", "killed", tmp_path).finish(240)
    assert done.status == 137 and "was killed by SIGKILL" in done.stderr, done
    assert "FAILED 137, and weights are those of the epoch's end: True" in done.stdout, done
    assert "variables hold the values from" in done.stderr, done


@pytest.mark.rotates
@pytest.mark.new_workers
@pytest.mark.parametrize(
    ("kind", "others"),
    [
        ("killed between", "they are found when the next fit begins"),
        pytest.param("ended between", "they have ended before the next fit", marks=pytest.mark.slow),
        ("killed within", "the next fit has others"),
        pytest.param("closed", "none are left", marks=pytest.mark.slow),
        pytest.param("other settings", "another number", marks=pytest.mark.slow),
    ],
)
def test_workers_are_kept_from_fit_to_fit_until_they_end(start, kind, others):  # noqa: F811
    running = start(SCRIPTS / "fits_in_turn.py", kind)
    expected = found_in(start(SCRIPTS / "fits_in_turn.py", "plain", plain=True).finish())
    done = running.finish(240)
    assert done.status == 0, done
    *kept, last = [json.loads(line[8:]) for line in done.stdout.splitlines() if line.startswith("WORKERS ")]
    assert max(differences(found_in(done), expected).values()) <= 1e-6
    assert len(kept[0]) == 2 and all(one == kept[0] for one in kept[:5]), others
    assert len(last) == (3 if kind == "other settings" else 2) and not set(last) & set(kept[0]), others
    assert done.stderr.count("those of the previous call") == 1
    if kind == "closed":
        assert kept[5] == []
    if "killed" in kind:
        assert "was killed by SIGKILL" in done.stderr
        assert ("FAILED JobFailed The job ended with exit status 137" in done.stdout) == (kind == "killed within")


def test_workers_that_no_fit_needs_say_nothing_and_end_with_the_script(start, write):  # noqa: F811
    script = write("train.py", "import parallax.keras\nparallax.keras.use()\nprint('DONE')\n")
    done = start(script).finish()
    assert done.status == 0 and done.stdout.strip() == "DONE" and "rank" not in done.stderr, done


LISTENING = {"this machine": (), "another machine": ("127.0.0.1", (30000, 40000))}


@pytest.mark.parametrize("where", LISTENING)
def test_who_does_not_know_the_key_of_a_driver_is_sent_away(where):
    listening, is_waiting = DriverSocket(*LISTENING[where]), iter([True, True, True, False])
    place = listening.address.place
    silent = socket.socket(socket.AF_UNIX if isinstance(place, str) else socket.AF_INET, socket.SOCK_STREAM)
    silent.connect(place)
    silent.sendall(b"no key at all, and more than a message has")
    assert listening.accept(lambda: next(is_waiting)) is None
    silent.close()
    listening.close()
    with pytest.raises(LaunchError, match="Worker 0 must reach the process that drives .* refused"):
        connect(DriverAddress(place, b"some other key"))


def test_a_driver_that_gets_none_of_its_ports_says_so():
    first = DriverSocket("127.0.0.1")
    port = first.address.place[1]
    with pytest.raises(LaunchError, match=f"needs a port from {port} to {port} of 127.0.0.1, but got none: .* in use"):
        DriverSocket("127.0.0.1", (port, port))
    first.close()


@pytest.mark.parametrize("where", LISTENING)
def test_a_channel_says_that_the_other_side_has_gone(where):
    listening = DriverSocket(*LISTENING[where])
    with ThreadPoolExecutor(1) as beside:
        other = beside.submit(connect, listening.address)
        channel = listening.accept(lambda: True)
        other = other.result()
    other.send({"a": 1})
    assert channel is not None and channel.receive() == {"a": 1}
    other.close()
    with pytest.raises(ChannelClosed):
        channel.receive()
    channel.close()
    listening.close()
