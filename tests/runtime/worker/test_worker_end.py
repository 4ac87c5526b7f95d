"""How a worker ends whose script ends before its time."""

from __future__ import annotations

import pytest

from parallax.runtime.worker import main


@pytest.mark.parametrize(
    ("stop", "status", "told"),
    [
        (SystemExit(3), 3, ""),
        (SystemExit("no data"), 1, "no data\n"),
        (SystemExit(300), 1, ""),  # no process has such a status
    ],
)
def test_the_exit_status_of_a_script_is_that_of_its_process(monkeypatch, stop, status, told):
    sent, left = [], []
    monkeypatch.setattr(main, "send", lambda message: sent.append(message) or True)
    monkeypatch.setattr(main.os, "_exit", left.append)
    main._fail(stop)
    assert left == [status]
    assert [(message["kind"], message["error"]) for message in sent] == [("failed", told)]
