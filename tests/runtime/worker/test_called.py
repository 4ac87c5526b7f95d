"""Functions and values that workers are sent."""

import threading

import pytest

from parallax.base.errors import ConfigError
from parallax.runtime.worker.function_package import pack_function, unpack_function


def test_a_function_comes_with_what_it_uses_from_around_it():
    factor = 3
    assert unpack_function(pack_function(lambda: factor * 2))() == 6


def test_a_function_that_cannot_be_sent_is_refused_with_what_holds_it():
    lock = threading.Lock()

    def locked():
        return lock.locked()

    said = "Cannot send the function locked to the workers: pickling fails with TypeError: .* Create what"
    with pytest.raises(ConfigError, match=said):
        pack_function(locked)
