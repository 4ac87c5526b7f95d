import io
import secrets

import pytest

from parallax.base.errors import LaunchError
from parallax.runtime.worker.job_message import JobMessage, read_parcel
from parallax.runtime.worker.ranks import hold_port

PARCEL = JobMessage(
    plan='{"version": 1}\n',
    graph=b"\x00graph\xff",
    seed=7,
    hosts=(0, 0, 2),
    servers=(0, 1),
    addresses=("a", "b", "fe80::1"),
    ports=(20000, 20100),
    spec='{"spec": {}, "sources": []}',
    function=b"pickle",
    attachment=memoryview(b"\x00weights"),
)


def wire(parcel):
    return b"".join(parcel.pieces())


@pytest.mark.parametrize("parcel", [PARCEL, JobMessage("", b"", 1, (0,))])
def test_a_parcel_comes_out_as_it_went_in(parcel):
    assert read_parcel(io.BytesIO(wire(parcel))) == parcel


def test_what_follows_a_parcel_is_not_read():
    stream = io.BytesIO(wire(PARCEL) + b"more")
    read_parcel(stream)
    assert stream.read() == b"more"


def test_a_parcel_may_come_in_small_pieces():
    class Slow(io.BytesIO):
        def readinto(self, buffer):
            return super().readinto(memoryview(buffer)[:7])

    assert read_parcel(Slow(wire(PARCEL))) == PARCEL


def test_a_parcel_that_is_cut_off_is_refused():
    data = wire(JobMessage(secrets.token_hex(100), b"nodes", 1, (0,), attachment=b"more"))
    for size in (0, 5, len(data) - 1):
        with pytest.raises(LaunchError, match="bytes arrived: the launcher has ended"):
            read_parcel(io.BytesIO(data[:size]))


def test_input_that_is_no_parcel_is_refused():
    with pytest.raises(LaunchError, match="got b'hello, here is some '"):
        read_parcel(io.BytesIO(b"hello, here is some text"))


def test_a_held_port_is_nobody_elses():
    first = hold_port("127.0.0.1", None)
    port = first.getsockname()[1]
    second = hold_port("127.0.0.1", (port, port + 20))
    assert port < second.getsockname()[1] <= port + 20
    with pytest.raises(LaunchError, match=f"a port from {port} to {port} of 127.0.0.1 .* Address already in use"):
        hold_port("127.0.0.1", (port, port))
    first.close()
    second.close()


def test_an_address_of_another_host_cannot_be_listened_on():
    with pytest.raises(LaunchError, match="any port of 192.0.2.1 .* Cannot assign requested address"):
        hold_port("192.0.2.1", None)
