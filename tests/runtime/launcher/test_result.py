from pathlib import Path

import pytest

from parallax.errors import LaunchError
from parallax.runtime.launcher.result import ResultCollector
from parallax.runtime.supervisor.control import checksum
from parallax.runtime.supervisor.frames import ResultPart

CRC = checksum(b"abcde")


def collected(*parts):
    collector = ResultCollector()
    for part in parts:
        collector.take(part)
    return collector.close()


def test_pieces_become_the_result_when_the_last_has_come():
    parts = [ResultPart(0, 5, CRC, b""), ResultPart(0, 5, CRC, b"ab"), ResultPart(0, 5, CRC, b"cde")]
    assert collected(*parts) == b"abcde" and collected(*parts).readonly
    assert collected(*parts[:2]) is None
    assert collected(*parts, parts[-1]) is None


def test_no_result_and_an_empty_one_are_told_apart():
    assert collected() is None
    assert collected(ResultPart(0, 0, 0, b"")) == b""


@pytest.mark.parametrize("has_file", [False, True])
def test_a_result_with_another_checksum_is_refused(has_file):
    collector = ResultCollector(has_file)
    if has_file:
        Path(collector.path).write_bytes(b"abcdf")
    collector.take(ResultPart(0, 5, CRC, b"" if has_file else b"abcdf"))
    result = collector.close()
    with pytest.raises(LaunchError, match=f"must come as rank 0 sent it, with the checksum {CRC:08x}, and 5 bytes"):
        collector.check(result)


def test_a_file_counts_when_its_length_is_told():
    for told, found in (([], None), ([ResultPart(0, 9, CRC, b"")], None), ([ResultPart(0, 5, CRC, b"")], b"abcde")):
        collector = ResultCollector(has_file=True)
        path = Path(collector.path)
        path.write_bytes(b"abcde")
        for part in told:
            collector.take(part)
        result = collector.close()
        assert result == found
        if result is not None:
            collector.check(result)
        assert "memfd" not in str(path.resolve())  # closed, whatever came
