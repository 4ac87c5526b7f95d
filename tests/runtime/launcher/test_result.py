from pathlib import Path

from parallax.runtime.launcher.result import ResultCollector
from parallax.runtime.supervisor.frames import ResultPart


def collected(*parts):
    collector = ResultCollector()
    for part in parts:
        collector.take(part)
    return collector.close()


def test_pieces_become_the_result_when_the_last_has_come():
    parts = [ResultPart(0, 5, b""), ResultPart(0, 5, b"ab"), ResultPart(0, 5, b"cde")]
    assert collected(*parts) == b"abcde" and collected(*parts).readonly
    assert collected(*parts[:2]) is None


def test_no_result_and_an_empty_one_are_told_apart():
    assert collected() is None
    assert collected(ResultPart(0, 0, b"")) == b""


def test_a_file_counts_when_its_length_is_told():
    for told, found in (([], None), ([ResultPart(0, 9, b"")], None), ([ResultPart(0, 5, b"")], b"abcde")):
        collector = ResultCollector(has_file=True)
        path = Path(collector.path)
        path.write_bytes(b"abcde")
        for part in told:
            collector.take(part)
        assert collector.close() == found
        assert "memfd" not in str(path.resolve())  # closed, whatever came
