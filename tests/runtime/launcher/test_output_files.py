"""Each rank's output in files of its own."""

import io

import pytest

from parallax.base.errors import LaunchError
from parallax.runtime.launcher.output.output_files import OutputFiles
from parallax.runtime.launcher.output.relay import Relay


def test_files_hold_the_text_as_it_came_and_the_console_too(tmp_path):
    out, err = io.BytesIO(), io.BytesIO()
    relay = Relay(out, err, files=OutputFiles(tmp_path / "made" / "here", ("worker-0", "worker-1", "worker-2")))
    for rank, stream, text in (
        (0, "stdout", "a\nhalf"),
        (1, "stdout", "10%\r20%\r\n"),
        (1, "stderr", "\udcff odd\n"),
        (0, "stdout", " a line\n"),
    ):
        relay.write(rank, stream, text, 0.0)
    relay.close()
    found = {str(f.relative_to(tmp_path / "made" / "here")): f.read_bytes() for f in tmp_path.rglob("std*")}
    assert found == {
        "worker-0/stdout": b"a\nhalf a line\n",
        "worker-0/stderr": b"",
        "worker-1/stdout": b"10%\r20%\r\n",
        "worker-1/stderr": b"\xff odd\n",
        "worker-2/stdout": b"",
        "worker-2/stderr": b"",
    }
    assert b"[0] half a line\n" in out.getvalue() and b"[1] \xff odd\n" in err.getvalue()


def test_what_a_rank_told_the_launcher_is_in_its_file_and_not_on_the_console(tmp_path):
    out, err = io.BytesIO(), io.BytesIO()
    relay = Relay(out, err, files=OutputFiles(tmp_path, ("worker-0",)))
    relay.keep(0, "Traceback\nKeyError\n")
    relay.close()
    assert (tmp_path / "worker-0" / "stderr").read_text() == "Traceback\nKeyError\n"
    assert out.getvalue() + err.getvalue() == b""


def test_files_of_an_earlier_job_are_made_anew(tmp_path):
    for text in ("first\n", "2\n"):
        files = OutputFiles(tmp_path, ("worker-0",))
        assert files.write(0, "stdout", text) == ""
        files.close()
    assert (tmp_path / "worker-0" / "stdout").read_text() == "2\n"
    assert files.write(0, "stdout", "late") == ""


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LaunchError, match="redirect_path must be a writable folder"):
        OutputFiles(tmp_path / "file", ("worker-0",))


def test_a_full_disk_is_said_once_and_the_job_goes_on():
    out, err = io.BytesIO(), io.BytesIO()
    files = OutputFiles.__new__(OutputFiles)
    files._names = ("worker-0",)
    files._files = {(0, "stdout"): open("/dev/full", "wb", buffering=0)}  # noqa: PTH123, SIM115
    relay = Relay(out, err, files=files)
    for _ in range(2):
        relay.write(0, "stdout", "x\n", 0.0)
    assert out.getvalue() == b"[0] x\n[0] x\n"
    assert (
        err.getvalue() == b"parallax: stdout of worker-0 is no longer written to its file: No space left on device.\n"
    )
