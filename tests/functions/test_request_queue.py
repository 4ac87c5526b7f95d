"""Requests that are sent again to workers that replace failed ones give what they give where nothing fails."""

import pickle
import random
from collections import deque

import numpy as np
import pytest

from parallax.base.errors import SessionError
from parallax.functions.remote.carried_sums import CarriedSums
from parallax.functions.remote.request_queue import RequestQueue, Resend, SentRequest
from parallax.functions.remote.serve_driver import ReadyWorkers, StepResults
from parallax.runtime.driver_channel import ChannelClosed

ANSWERED = ("open", "step", "read")


class Workers:
    """Workers of one job, behind a channel: a number that steps change, and parts of a sum that begin at zero.

    Args:
        files: where checkpoints of every third step are, with those of the jobs before; None for none.
        lives: how many messages they send and receive before they fail.
    """

    def __init__(self, files, lives):
        self.files, self.lives = files, lives
        self.number, self.part, self.steps, self.results = 1, 0, 0, []
        self.answers = deque()
        if files:
            self.steps, self.number = max(files.items())

    def _live(self):
        if self.lives == 0:
            raise ChannelClosed
        self.lives -= 1

    def send_bytes(self, data):
        self._live()
        request = pickle.loads(data)
        getattr(self, request.kind)(*request.arguments)

    def send(self, message):
        self.send_bytes(pickle.dumps(message))

    def wait(self, until_s):
        if not self.answers:
            self._live()
            raise AssertionError("an answer was waited for that nobody gives")

    def receive(self):
        self._live()
        return self.answers.popleft()

    def close(self):
        pass

    def open(self):
        self.answers.append(ReadyWorkers(self.steps or None))

    def name_results(self, number):
        assert number == len(self.results)  # each once
        self.results.append(number)

    def step(self, results, value):
        assert results in self.results
        self.number = (self.number * 31 + value) % 1009
        self.part += value
        self.steps += 1
        self.answers.append(StepResults([np.asarray(self.part)], [np.asarray(self.number)], [], [], []))
        if self.files is not None and self.steps % 3 == 0:
            self.files[self.steps] = self.number

    def reset(self):
        self.part = 0

    def write(self, value):
        self.number = value

    def read(self):
        self.answers.append(self.number)


def run(seed, lives, files):
    """The answers to some requests, of workers that fail after so many messages, one job after the other."""
    jobs = iter(lives)

    def restore():
        while True:
            channel = Workers(files, next(jobs, -1))
            try:
                return channel, RequestQueue(channel).open("open")()
            except ChannelClosed:
                continue

    requests, sums = RequestQueue(Workers(files, next(jobs, -1)), restore), CarriedSums()
    requests.open("open")()
    requests.begin_at(0)
    requests.watcher = sums
    sums.names = {"train": ["total"]}
    own, answers, waiting, number = random.Random(seed), [], [], 0
    requests.notify("name_results", 0, resend=Resend.ALWAYS)

    def take(one):
        place, wait, note = one
        found = wait()
        answers[place] = int(note.totals["total"]), int(found.means[0])

    for _ in range(60):
        what = own.choice(["step", "step", "step", "step", "reset", "write", "read", "name_results"])
        if what == "step":
            note = sums.note_run("train")
            wait = requests.call("step", number, own.randrange(9), resend=Resend.SINCE_BASE, note=note, counts=True)
            waiting.append((len(answers), wait, note))
            answers.append(None)
        elif what == "reset":
            requests.notify("reset", note=sums.note_reset())
        elif what == "write":
            requests.notify("write", own.randrange(1000))
        elif what == "name_results":
            number += 1
            requests.notify("name_results", number, resend=Resend.ALWAYS)
        else:
            answers.append(requests.call("read")())
        if files is None and own.random() < 0.1:
            requests.rebase([SentRequest.of("write", (requests.call("read")(),))])
        elif files and own.random() < 0.2:
            requests.forget_until(max(files))
        while len(waiting) > 1:  # as a step's results are waited for when the next one was sent
            take(waiting.pop(0))
    for one in waiting:
        take(one)
    assert requests.has_recovered == (lives != [-1])
    return answers


@pytest.mark.parametrize("has_files", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_answers_are_those_of_workers_that_never_fail(has_files, seed):
    own = random.Random(seed)
    lives = [own.randrange(2, 25) * 2 for _ in range(5)]  # even, so that no answer is lost after its checkpoint
    while True:
        files = {} if has_files else None
        try:
            found = run(seed, lives, files)
            break
        except SessionError as error:
            assert "before returning the results" in str(error) and has_files
            lives = [one + 1 for one in lives]
    assert found == run(seed, [-1], {} if has_files else None)


def test_the_result_of_a_step_that_is_in_a_checkpoint_alone_is_missed():
    files = {}
    requests = RequestQueue(
        Workers(files, 7), lambda: (channel := Workers(files, -1), RequestQueue(channel).open("open")())
    )
    requests.open("open")()
    requests.begin_at(0)
    requests.notify("name_results", 0, resend=Resend.ALWAYS)
    asked = [requests.call("step", 0, value, resend=Resend.SINCE_BASE, counts=True) for value in (1, 2, 3)]
    asked[0]()
    with pytest.raises(SessionError, match="the checkpoint of step 3, and before returning the results"):
        asked[1]()


@pytest.mark.parametrize("resumed", [2, None])
def test_requests_that_are_no_longer_kept_are_missed(resumed):
    files = {}
    lives = iter([13, -1])

    def restore():
        files.pop(3)
        channel = Workers({0: 1}, -1)
        return channel, ReadyWorkers(resumed)

    requests = RequestQueue(Workers(files, next(lives)), restore)
    requests.open("open")()
    requests.begin_at(0)
    requests.notify("name_results", 0, resend=Resend.ALWAYS)
    for value in range(3):
        requests.call("step", 0, value, resend=Resend.SINCE_BASE, counts=True)()
    requests.forget_until(3)
    with pytest.raises(SessionError, match="only from step 3 on"):
        while True:
            requests.notify("write", 1)


@pytest.mark.parametrize("gives_up", [False, True])
def test_without_others_a_failure_ends_it(gives_up):
    requests = RequestQueue(Workers(None, 4), pytest.fail if gives_up else None)
    requests.open("open")()
    requests.give_up()
    assert not requests.is_restorable and requests.stored_bytes == 0
    with pytest.raises(ChannelClosed):
        requests.call("read")(1.0)
        requests.call("read")(1.0)
