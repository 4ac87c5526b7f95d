"""What processes of a job send each other: whatever a mutation makes of it is refused in words, and nothing else."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from parallax.base.errors import LaunchError, ParallaxError
from parallax.graph.spec import (
    GradientSource,
    GraphSpec,
    Part,
    Slot,
    VariableClass,
    VariableSpec,
    spec_from_json,
    spec_to_json,
)
from parallax.runtime.doctor.command import read_links
from parallax.runtime.doctor.findings import Links
from parallax.runtime.supervisor import control, frames
from parallax.runtime.supervisor.control import DamagedMessage, check_message, read_sealed, seal
from parallax.runtime.supervisor.frames import (
    Control,
    Exit,
    Frame,
    Pulse,
    Start,
    Text,
    encode_frame,
    read_frame,
)
from parallax.runtime.supervisor.pipes import ControlChannel
from parallax.runtime.supervisor.sealed_files import sealed_value
from parallax.runtime.supervisor.state_machine import HeartbeatReceived
from parallax.runtime.verify.claim_records import ClaimGroups
from parallax.runtime.worker.job_message import JobMessage, read_parcel
from tests.mutations import for_all, mutated_bytes, mutated_json

HOW_MANY = [pytest.param(100, id="some"), pytest.param(5_000, id="many", marks=pytest.mark.slow)]

MESSAGES: list[dict[str, Any]] = [
    {"kind": "alive", "runs": 12, "fetch": "train_op", "seconds": 0.5},
    {"kind": "alive", "serves": True},
    {
        "kind": "in_run",
        "fetch": "train_op",
        "collectives": "0f3a",
        "patient": True,
        "for_all": {"loss": ["a1 mean", "b2 "]},
        "failures": ["run 3: ValueError: no"],
        "seconds": 2.5,
    },
    {"kind": "run_done"},
    {"kind": "finished", "runs": 40},
    {"kind": "saved", "step": 7, "loaded": False},
    {"kind": "overdue", "what": "the folder has not answered"},
    {"kind": "ready", "bytes": 123456},
    {"kind": "preempted", "step": 12},
    {"kind": "failed", "error": "Traceback <module>\nE: \udcff é", "what": "E"},
]
FRAMES: list[Frame] = [
    Start(3, 100, 101, "host-a", ("/tmp/x", "/dev/shm/y.*")),
    Text(0, "stderr", '\r[1,2]<stdout>: "é" \udcff\n'),
    *(Control(1, message) for message in MESSAGES),
    Exit(1, -9, told=True, by=15),
    Pulse(2, 0.0, 1.5, MESSAGES[0]),
    Pulse(2),
]
SOURCE = GradientSource("emb", "g/Reshape:0", "g/Reshape_1:0", ("loss",), "autodiff")
SPEC = spec_to_json(
    GraphSpec(
        "7406cf5a48c1",
        (
            VariableSpec(
                *("emb", (11, 4), "float32", 4, (Part("emb", (11, 4)),), True, VariableClass.SPARSE),
                gradients=(SOURCE,),
                slots=(Slot("Adagrad", ("emb/Adagrad",), 4, 4),),
            ),
        ),
        ("a note",),
    ),
    (SOURCE,),
)
JOB = JobMessage(
    plan='{"version": 1}\n',
    graph=b"\x00graph\xff" * 5,
    seed=7,
    hosts=(0, 0, 2),
    servers=(0, 1),
    addresses=("a", "b", "fe80::1"),
    ports=(20000, 20100),
    spec=SPEC,
    function=b"pickle",
    attachment=memoryview(b"\x00weights"),
)


def check_refused_or_equal(count: int, sent: object, drawn: Any, read: Callable[[Any], object]) -> None:
    """Reads mutations of one message: each is refused with an error of Parallax's own, or has the same content."""
    refused = []

    def check(mutation: Any) -> None:
        try:
            found = read(mutation)
        except (ParallaxError, DamagedMessage) as error:
            assert len(str(error).splitlines()) == 1 and str(error).isprintable()
            refused.append(mutation)
            return
        assert found == sent

    for_all(count, check, drawn)
    assert len(refused) > count / 2  # else nothing was tried


def test_every_kind_of_frame_and_message_is_tried() -> None:
    assert {type(frame) for frame in FRAMES} == {*frames._CLASS_BY_KIND.values()}
    kinds = {kind.__struct_config__.tag for kind in control._AnyMessage.__args__}
    assert {message["kind"] for message in MESSAGES} == kinds
    assert all(check_message(message) == message for message in MESSAGES)
    assert [read_frame(encode_frame(frame)) for frame in FRAMES] == FRAMES


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
@pytest.mark.parametrize("count", HOW_MANY)
def test_a_mutated_frame_is_refused(frame: Frame, count: int) -> None:
    line = encode_frame(frame)
    check_refused_or_equal(count, frame, mutated_bytes(line), read_frame)
    with pytest.raises(DamagedMessage):
        read_frame(line[:-9] + line[-1:])


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: str(message["kind"]))
@pytest.mark.parametrize("count", HOW_MANY)
def test_a_mutated_message_of_a_worker_is_refused(message: dict[str, Any], count: int) -> None:
    line = seal(json.dumps(message).encode())
    check_refused_or_equal(count, message, mutated_bytes(line), lambda data: check_message(read_sealed(data)))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: str(message["kind"]))
def test_a_mutated_message_on_the_workers_pipe_is_said_and_dropped(message: dict[str, Any]) -> None:
    line = seal(json.dumps(message).encode())

    def check(data: bytes) -> None:
        for found in ControlChannel(3).feed(data + b"\n"):
            if isinstance(found, Text):
                assert found.text.startswith("parallax: a message of this rank was dropped: ")
            else:
                told = found.doing if isinstance(found, HeartbeatReceived) else found.message  # type: ignore[union-attr]
                assert told == message

    for_all(60, check, mutated_bytes(line))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: str(message["kind"]))
def test_a_message_with_other_fields_is_refused_though_its_checksum_is_right(message: dict[str, Any]) -> None:
    """As another version of Parallax, or a program that writes to the pipe, would send it."""
    fields = {name: value for name, value in message.items() if name != "kind"}
    wrong: list[dict[str, Any]] = [{**message, name: [value]} for name, value in message.items()]
    wrong += [{**message, name: None} for name in fields if name not in ("runs", "seconds", "what")]
    wrong += [{**message, name: -1} for name, value in fields.items() if isinstance(value, int | float)]
    for one in (*wrong, {**message, "odd": 1}, {**message, "kind": "odd"}, {}, [message], "text", None):
        with pytest.raises(DamagedMessage):
            check_message(one)
        for frame in (Control(0, one), Pulse(0, doing=one)):  # type: ignore[arg-type]
            if one != {}:
                with pytest.raises(DamagedMessage):
                    read_frame(encode_frame(frame))


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_a_frame_with_other_types_is_refused_though_its_checksum_is_right(frame: Frame) -> None:
    body = json.loads(encode_frame(frame).split(b" ", 2)[2])
    for name in body:
        without = {other: value for other, value in body.items() if other != name}
        for value in ({}, [[]], -(2**60), 1e400, "\x00odd", None):
            if value != body[name] and (name, value) not in (("doing", {}), ("host", "\x00odd"), ("text", "\x00odd")):
                with pytest.raises(DamagedMessage):
                    read_frame(seal(json.dumps({**body, name: value}).encode()))
        with pytest.raises(DamagedMessage):
            read_frame(seal(json.dumps(without).encode()))
    with pytest.raises(DamagedMessage):
        read_frame(seal(json.dumps({**body, "odd": 1}).encode()))


@pytest.mark.parametrize("count", [pytest.param(300, id="some"), HOW_MANY[1]])
def test_a_mutated_job_message_is_refused(count: int) -> None:
    data = b"".join(JOB.pieces())
    assert read_parcel(io.BytesIO(data)) == JOB

    def read(mutation: bytes) -> JobMessage:
        found = read_parcel(io.BytesIO(mutation))
        return replace(found, function=bytes(found.function), attachment=bytes(found.attachment))

    sent = replace(JOB, function=bytes(JOB.function), attachment=bytes(JOB.attachment))
    check_refused_or_equal(count, sent, mutated_bytes(data), read)


def test_a_job_message_with_other_types_is_refused_though_its_checksums_are_right() -> None:
    changes: list[dict[str, Any]] = [{"seed": "7"}, {"hosts": 3}, {"hosts": (0, "b")}, {"ports": (1,)}, {"plan": None}]
    for change in [*changes, {"addresses": "a"}, {"seed": 10**400}, {"cluster_name": 5}]:
        data = b"".join(replace(JOB, **change).pieces())
        with pytest.raises(LaunchError, match="its values are not those of version 3"):
            read_parcel(io.BytesIO(data))


def test_a_job_message_of_another_version_is_refused_by_its_number() -> None:
    data = b"".join(JOB.pieces())
    with pytest.raises(LaunchError, match="job's message has version 2, and this worker reads 3"):
        read_parcel(io.BytesIO(data.replace(b"PRLX3\n", b"PRLX2\n", 1)))
    with pytest.raises(DamagedMessage, match="it is of version 2 of the messages, and this process reads 1"):
        read_frame(encode_frame(Exit(0, 0)).replace(b"parallax/1", b"parallax/2"))


@pytest.mark.parametrize("count", [pytest.param(200, id="some"), HOW_MANY[1]])
def test_a_mutated_spec_of_a_graph_is_refused_or_reads_as_it_is_written(count: int) -> None:
    """The message that it travels in has the checksum; here its fields and types are tried."""

    def check(text: str) -> None:
        try:
            found = spec_from_json(text)
        except ParallaxError as error:
            assert str(error).isprintable()
            return
        assert json.loads(spec_to_json(*found)) == json.loads(text)

    for_all(count, check, mutated_json(SPEC))


@pytest.mark.parametrize("count", HOW_MANY)
def test_a_mutated_file_between_processes_of_a_command_is_refused(count: int, tmp_path: Path) -> None:
    sent = ClaimGroups((("a:0", "b:0"), ("c:0",)), ("d:0",), 7)
    sent.write(tmp_path)
    (written,) = tmp_path.iterdir()
    whole = written.read_bytes()
    assert ClaimGroups.read(tmp_path) == sent

    def read(content: bytes) -> ClaimGroups:
        written.write_bytes(content)
        return ClaimGroups.read(tmp_path)

    check_refused_or_equal(count, sent, mutated_bytes(whole), read)
    written.unlink()
    with pytest.raises(LaunchError, match="is missing or damaged: .*No such file"):
        ClaimGroups.read(tmp_path)


@pytest.mark.parametrize("count", HOW_MANY)
def test_mutated_rates_of_links_are_told_or_equal(count: int) -> None:
    line = b"[0] " + sealed_value([[[1e8, 2e8], [3e8, 4e8]], [[0.0, 3e8], [3e8, 0.0]]])
    sent = Links(((1e8, 2e8), (3e8, 4e8)), pairs=((0.0, 3e8), (3e8, 0.0)))

    def check(output: bytes) -> None:
        found = read_links(output, 2)
        assert found == sent or (found.why and not found.rates)

    for_all(count, check, mutated_bytes(line) | st.just(line))
    assert "rank 0 must report rates of 3 hosts, got 2" in read_links(line, 3).why
    uneven = b"[0] " + sealed_value([[[1e8, 2e8], [3e8, 4e8]], [[0.0, 3e8], [3e8]]])
    assert "rank 0 must report rates between every two of 2 hosts" in read_links(uneven, 2).why
