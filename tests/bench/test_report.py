import base64
import re
import struct
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from ops.bench.race.report import markdown_text, table_text, write_html, write_png
from ops.bench.race.results import Ran
from tests.bench.races import race, ran, results, two_and_four_hosts

DIFFERENCES = ({"horovod": 0.0, "parallax": 1.2e-7}, {"parallax": 2.5e-7})
VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """Tags that are closed in order, the words between them, and what they refer to."""

    def __init__(self, text):
        super().__init__()
        self.open, self.words, self.references, self.tags = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.references += [value for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def without_a_lab():
    """One host, nothing limited, nothing counted, losses of nobody compared."""
    return race(1, 0, [ran("parallax", 0.02), ran("horovod", 0.03)], rate=0)


def all_failed():
    return race(2, 250_000, [Ran("parallax", True, (), (), (), "no memory"), Ran("tf-ps", True, (), (), ())])


CASES = {
    "two numbers of hosts": two_and_four_hosts(),
    "no lab": (without_a_lab(),),
    "all failed": (all_failed(),),
    "failed on all hosts": (all_failed(), race(4, 1, all_failed().runs)),
    "no system": (race(2, 1, []),),
    "no race": (),
    "no compute time": (race(2, 250_000, [ran("a", 1.0, wire_bytes=1)], compute_s=0.0),),
}


@pytest.fixture(params=CASES)
def any_results(request):
    return results(*CASES[request.param])


def test_the_tables_are_as_they_were(golden):
    golden("race_table.txt", table_text(results(*two_and_four_hosts()), DIFFERENCES))


def test_the_markdown_is_as_it_was(golden):
    golden("race_table.md", markdown_text(results(*two_and_four_hosts()), DIFFERENCES))


def test_the_ratio_is_against_the_first_row_of_ours_that_ran():
    rows = [
        ran("parallax-alltoall", 0.01, problem="no"),
        ran("horovod", 0.06),
        ran("parallax-ps", 0.03),
        ran("parallax", 0.02),
    ]
    text = table_text(results(race(2, 250_000, rows)))
    assert re.search(r"horovod +60.0 ms +60.0-60.0 +3,333 +2.00 ", text)
    assert "over that of parallax-ps" in text


def test_a_failed_system_says_why_on_one_line():
    lines = table_text(results(*two_and_four_hosts())).splitlines()
    assert "tf-ps-async  failed: worker 3 <a|b> was killed by signal 9 & is gone" in lines


def test_a_race_without_a_lab_has_no_column_of_bytes():
    text = table_text(results(without_a_lab()))
    assert "wire bytes" not in text and "x least" not in text and "least bytes" not in text.splitlines()[1]
    assert "links not limited" in text and "x slower" in text and "CPU s" in text


def test_bytes_are_shown_where_links_are_not_limited():
    text = table_text(results(race(2, 250_000, [ran("parallax", 0.02, wire_bytes=500_000)], rate=0)))
    assert "500 kB" in text and "2.00" in text and "binds" not in text


def test_a_twin_is_reported_in_dilated_time_and_its_throughput_is_not():
    runs = [ran("parallax", 1.5, wire_bytes=25_000_000), ran("horovod", 3.0, wire_bytes=50_000_000)]
    twin = replace(race(2, 25_000_000, runs, compute_s=1.3), device_s=1.25, dilation=100.0, cores=2)
    lines = table_text(results(twin)).splitlines()
    assert "time is dilated 100 times" in lines[2] and "1,250 ms for 12.5 ms" in lines[2] and "1,300 ms" in lines[2]
    cells = [re.split(r" {2,}", line) for line in lines if line.startswith(("system", "parallax", "horovod"))]
    ours, theirs = (dict(zip(cells[0], row, strict=True)) for row in cells[1:])
    assert (ours["median step"], ours["undilated"], ours["words/s"]) == ("1,500 ms", "15.0 ms", "13,333")
    assert (ours["x bound"], ours["binds"], theirs["binds"]) == ("1.20", "compute", "wire")
    assert ours["of cores"] == "2 %"  # 0.05 s of two cores' 1.5 s


def test_a_twins_steps_are_compared_with_the_shortest_one_alone_or_where_steps_overlap():
    runs = [ran("parallax", 1.5), ran("parallax-overlap", 1.3), ran("tf-ps", 1.8)]
    twin = replace(race(2, 25_000_000, runs), device_s=1.0, shortest_s=1.2, overlapping_s=1.0)
    lines = table_text(results(twin)).splitlines()
    assert "order of the graph: 1,200 ms alone, 1,000 ms if steps overlap" in lines[4]
    cells = [re.split(r" {2,}", line) for line in lines if line.startswith(("system", "parallax", "tf-ps"))]
    found = {row[0]: dict(zip(cells[0], row, strict=True))["x shortest"] for row in cells[1:]}
    assert found == {"parallax": "1.25", "parallax-overlap": "1.30", "tf-ps": "1.50"}
    assert "x shortest" not in table_text(results(*two_and_four_hosts())), "it is not known where cores compute"


def test_differences_must_be_given_for_every_race():
    with pytest.raises(ValueError, match="there are 2 races, and differences for 1"):
        table_text(results(*two_and_four_hosts()), DIFFERENCES[:1])


def test_every_row_of_a_markdown_table_has_the_same_number_of_cells(any_results):
    for block in re.findall(r"(?:^\|.*\n)+", markdown_text(any_results), re.MULTILINE):
        counts = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(counts) == 1


def test_whatever_happened_there_is_a_text(any_results):
    text = table_text(any_results)
    assert "nan" not in text and "inf" not in text
    assert all(run.system in text for one in any_results.races for run in one.runs)


def test_the_page_is_closed_and_refers_to_nothing_outside(any_results, tmp_path):
    write_html(any_results, tmp_path / "race.html")
    text = (tmp_path / "race.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == [] and "script" not in page.tags and "link" not in page.tags
    assert not re.search(r"https?:|//|@import|url\(", re.sub(r"base64,[A-Za-z0-9+/=]+", "", text))
    for reference in page.references:
        kind, _, data = reference.partition(",")
        assert kind == "data:image/svg+xml;base64"
        svg = base64.b64decode(data).decode()
        assert all(target.startswith("#") for target in re.findall(r'href="([^"]*)"', svg))


def test_the_page_has_all_words_as_they_are(tmp_path):
    write_html(results(*two_and_four_hosts()), tmp_path / "race.html", DIFFERENCES)
    page = Page((tmp_path / "race.html").read_text(encoding="utf-8"))
    words = "\n".join(page.words)
    for part in (
        "worker 3 <a|b> was killed by signal 9 & is gone",
        "no <GPU> & no",
        "python -m ops.bench race --hosts 2,4",
        "2 cores, 16 GB, Linux 6.1",
        "2026-01-02T03:04:05",
        "what the bytes allow",
    ):
        assert part in words
    assert page.tags.count("img") == 1 and page.tags.count("table") == 3


def test_the_same_results_give_the_same_page(tmp_path):
    for name in ("a", "b"):
        write_html(results(*two_and_four_hosts()), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_picture_is_a_png_1400_pixels_wide(any_results, tmp_path):
    write_png(any_results, tmp_path / "race.png")
    data = (tmp_path / "race.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert width == 1400 and 400 <= height <= 600
