"""Parts in files: what can be read whoever was killed when, and which set is chosen when a host is lost."""

import random

import numpy as np
import pytest

from parallax.base.errors import CheckpointError
from parallax.runtime.memory_checkpoints.choose_set import PartFound, choose_set
from parallax.runtime.memory_checkpoints.exchange import Ring, cut, ring
from parallax.runtime.memory_checkpoints.part_files import (
    COMMON,
    PartFiles,
    PartHead,
    PartVariable,
    PartView,
    SetRecord,
    is_part,
    read_head,
    sets_of,
)
from parallax.runtime.memory_checkpoints.store import parts_in
from tests.mutations import for_all, mutated_bytes

ROWS, WIDTH, HOSTS = 7, 8, 4
VARIABLES = (PartVariable("table", ROWS, WIDTH, by_row=True, pattern=(0, 1, 2, 3)), PartVariable("slot", 2, 4))


class Owner:
    """The values of one part, set by set."""

    def __init__(self, owner, seed):
        self.head = PartHead(1, owner, HOSTS, VARIABLES)
        self.random = np.random.RandomState(seed)
        self.sets = [self.random.randint(0, 256, (ROWS, WIDTH)).astype(np.uint8)]

    def record(self, number):
        """The record of a set, which may be asked for several times."""
        while len(self.sets) <= number:
            touched = np.flatnonzero(self.random.rand(ROWS) < 0.4)
            following = self.sets[-1].copy()
            following[touched] = self.random.randint(0, 256, (len(touched), WIDTH))
            self.sets.append(following)
        before, now = self.sets[max(number - 1, 0)], self.sets[number]
        numbers = np.flatnonzero((before != now).any(1))
        return SetRecord(number, 100 + number, {0: (numbers, now[numbers])}, {1: bytes([number] * 8)})

    def begin(self, folder):
        files = PartFiles(folder, self.head)
        files.write_base(0, 0, self.sets[0][:3])
        files.write_base(0, 3, self.sets[0][3:])
        return files

    def check(self, view, number):
        """The part has the values of a set, by whatever range."""
        for low in range(ROWS + 1):
            for high in range(low, ROWS + 1):
                np.testing.assert_array_equal(view.read("table", low, high), self.sets[number][low:high])
        np.testing.assert_array_equal(view.read("slot", 0, 2), np.full((2, 4), number, np.uint8))


def test_a_part_has_the_rows_of_each_set_that_can_be_read(tmp_path):
    owner = Owner(2, 5)
    files = owner.begin(tmp_path / "part")
    assert is_part(tmp_path / "part") and read_head(tmp_path / "part") == owner.head
    assert sets_of(tmp_path / "part") == {}  # the first has no record yet
    for number in range(6):
        files.add(owner.record(number))
        assert sets_of(tmp_path / "part")[number] == 100 + number
        for known in sets_of(tmp_path / "part"):
            owner.check(PartView(tmp_path / "part", known), known)
        if number % 2:
            files.merge_into_base(number - 1)
            assert set(sets_of(tmp_path / "part")) == {number - 1, number}


@pytest.mark.parametrize("put_in", range(4))
def test_a_base_that_was_broken_off_gives_no_set_before_and_the_right_values_after(tmp_path, put_in):
    owner = Owner(0, 7)
    files = owner.begin(tmp_path / "part")
    for number in range(4):
        files.add(owner.record(number))
    files._write_progress(0, 2)  # as `fold(2)` begins
    record = owner.record(2)
    numbers, rows = record.rows[0]
    for row, value in list(zip(numbers, rows, strict=True))[:put_in]:
        files.write_base(0, int(row), value[None])
    assert set(sets_of(tmp_path / "part")) == {2, 3}
    for number in (2, 3):
        owner.check(PartView(tmp_path / "part", number), number)
    files.merge_into_base(3)
    assert set(sets_of(tmp_path / "part")) == {3}
    owner.check(PartView(tmp_path / "part", 3), 3)


def test_a_record_that_is_not_there_in_whole_is_none(tmp_path):
    owner = Owner(0, 3)
    files = owner.begin(tmp_path / "part")
    files.add(owner.record(0))
    pieces = b"".join(bytes(piece) for piece in owner.record(1).pieces())
    unfinished = files.begin()
    unfinished.write(pieces[:40])
    assert set(sets_of(tmp_path / "part")) == {0}
    unfinished = files.begin()
    for begin in range(0, len(pieces), 9):
        unfinished.write(pieces[begin : begin + 9])
    unfinished.finish()
    assert set(sets_of(tmp_path / "part")) == {0, 1}
    owner.check(PartView(tmp_path / "part", 1), 1)


@pytest.mark.parametrize("name", ["head.json", "progress", "record-2", "record-3"])
@pytest.mark.parametrize("count", [pytest.param(60, id="some"), pytest.param(3000, id="many", marks=pytest.mark.slow)])
def test_a_mutated_file_of_a_part_is_left_out_and_nothing_else_is_read_of_it(tmp_path, name, count):
    owner = Owner(2, 5)
    part = tmp_path / "1" / "worker-2"
    files = owner.begin(part)
    for number in range(4):
        files.add(owner.record(number))
    files.merge_into_base(2)
    whole = (part / name).read_bytes()
    left_out = []

    def check(content):
        (part / name).write_bytes(content)
        found = parts_in(tmp_path)
        sets = found[0].sets if found else {}
        assert {number: 100 + number for number in sets} == sets
        for number in sets:
            owner.check(PartView(part, number), number)
        assert found in ([], [PartFound(1, 2, HOSTS, sets)])
        left_out.append(sets != {2: 102, 3: 103})

    for_all(count, check, mutated_bytes(whole))
    assert sum(left_out) > count / 2
    check(whole)
    assert not left_out[-1]


def test_files_that_were_cut_moved_or_are_none_are_left_out(tmp_path, caplog):
    owner = Owner(2, 5)
    part = tmp_path / "1" / "worker-2"
    files = owner.begin(part)
    for number in range(3):
        files.add(owner.record(number))
    (part / "record-2").rename(part / "record-7")
    (part / "record-x").touch()
    (part / "record-1").write_bytes(b"")
    assert parts_in(tmp_path) == [PartFound(1, 2, HOSTS, {0: 100})]
    with (part / "base-0").open("ab") as file:
        file.write(b"more")
    assert parts_in(tmp_path) == []
    with pytest.raises(
        CheckpointError,
        match="record-1, a part of an in-memory checkpoint, is missing or damaged: it does not begin with",
    ):
        PartView(part, 1)


class Job:
    """Workers that write sets, one on each host, in any order that messages and barriers allow."""

    def __init__(self, folder, seed):
        self.folder, self.choices = folder, random.Random(seed)
        self.owners = {owner: Owner(owner, owner + 9) for owner in (COMMON, *range(HOSTS))}
        self.ended = {}  # number -> workers that have begun the barrier after it
        self.came = set()  # (sender, number)

    def part(self, host, owner):
        return self.folder / f"host{host}" / str(owner)

    def worker(self, rank):
        """What a worker does, with a pause wherever it may be killed."""
        before = (rank - 1) % HOSTS
        kept = {owner: self.owners[owner].begin(self.part(rank, owner)) for owner in (COMMON, rank, before)}
        yield True
        for number in range(1000):
            if number:
                while len(self.ended[number - 1]) < HOSTS:
                    yield False
                for files in kept.values():
                    files.merge_into_base(number - 1)
                    yield True
            for owner in (rank, COMMON):
                kept[owner].add(self.owners[owner].record(number))
                yield True
            self.came.add((rank, number))
            yield True
            while (before, number) not in self.came:
                yield False
            kept[before].add(self.owners[before].record(number))
            yield True
            self.ended.setdefault(number, set()).add(rank)

    def run(self, moves):
        """Runs so many moves, a random worker's each."""
        workers = [self.worker(rank) for rank in range(HOSTS)]
        while moves:
            moves -= next(self.choices.choice(workers))

    def found(self, lost):
        """What the workers of the hosts that are left find."""
        return [
            [
                PartFound(1, owner, HOSTS, sets_of(self.part(host, owner)))
                for owner in self.owners
                if is_part(self.part(host, owner))
            ]
            for host in range(HOSTS)
            if host != lost
        ]


@pytest.mark.parametrize("seed", range(150))
def test_whoever_is_lost_when_the_others_have_the_last_set_that_all_had(tmp_path, seed):
    job = Job(tmp_path, seed)
    job.run(moves=20 + 3 * seed)
    left = [host for host in range(HOSTS) if host != seed % HOSTS]
    chosen = choose_set(job.found(seed % HOSTS))
    on_all = max((number for number, ranks in job.ended.items() if len(ranks) == HOSTS), default=-1)
    if chosen is None:
        assert on_all < 0
        return
    assert chosen.number in (on_all, on_all + 1) and chosen.step == 100 + chosen.number
    for owner, reader in chosen.readers.items():
        job.owners[owner].check(PartView(job.part(left[reader], owner), chosen.number), chosen.number)


def test_rows_that_no_host_has_any_more_are_named(tmp_path):
    job = Job(tmp_path, 1)
    job.run(moves=100)
    hosts = job.found(lost=1)
    with pytest.raises(
        CheckpointError, match="No available host holds the rows of rank 1: hosts that replicate each other"
    ):
        choose_set([hosts[0], hosts[2]])  # hosts 1 and 2 are gone


def generation(number, hosts, sets, workers=2):
    """Each host with the parts of two workers and what is common."""
    return [[PartFound(number, owner, workers, sets) for owner in (COMMON, 0, 1)] for _ in range(hosts)]


def test_of_generations_the_latest_complete_one_counts_and_a_host_of_the_past_does_not():
    past, now = generation(3, 1, {9: 90}), generation(4, 2, {2: 50})
    assert choose_set([*past, *now]).generation == 4 and choose_set([*past, *now]).step == 50
    begun = generation(4, 2, {})  # its first set was not yet written when it was broken off
    assert choose_set([[*past[0], *begun[0]], [*past[0], *begun[1]]]).step == 90
    assert choose_set([[], []]) is None and choose_set(generation(1, 2, {})) is None


def test_a_host_sends_to_the_next_one_and_alone_to_nobody():
    assert [ring((0, 1, 2), rank) for rank in range(3)] == [Ring(1, (2,)), Ring(2, (0,)), Ring(0, (1,))]
    assert [ring((0, 0), rank) for rank in range(2)] == [Ring(None, ()), Ring(None, ())]
    uneven = [ring((0, 0, 1), rank) for rank in range(3)]
    assert uneven == [Ring(2, (2,)), Ring(2, ()), Ring(0, (0, 1))]


def test_pieces_are_put_together_and_cut_without_a_byte_lost(monkeypatch):
    monkeypatch.setattr("parallax.runtime.memory_checkpoints.exchange.PIECE_BYTES", 10)
    given = [b"", b"abc", bytes(range(37)), b"de", b"f" * 10]
    pieces = list(cut(given))
    assert b"".join(pieces) == b"".join(given) and max(map(len, pieces)) <= 10 and len(pieces) == 6
