"""The logger of Parallax and its users, named PARALLAX; PARALLAX_LOG_LEVEL sets its level (INFO by default).

It writes to stderr through its own handler, so that each line appears once, whatever logging setup the script has.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from parallax.base.errors import ConfigError
from parallax.base.status_line import clear_status
from parallax.settings.environment import log_level


class _Stderr(logging.StreamHandler[TextIO]):
    """A handler that writes to the current stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one line."""
        clear_status()
        self.stream = sys.stderr
        super().emit(record)


def _logger() -> logging.Logger:
    logger = logging.getLogger("PARALLAX")
    if not logger.handlers:
        handler = _Stderr()
        handler.setFormatter(logging.Formatter("%(name)s %(levelname)s: %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False  # libraries give the root logger handlers, and a line would appear twice
    try:
        logger.setLevel(log_level())
    except ConfigError:  # not refused at import time: parallel_run refuses it
        logger.setLevel(logging.INFO)
    return logger


log = _logger()
