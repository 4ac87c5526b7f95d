"""Jobs of drivers, started and ended as in the end-to-end tests."""

from tests.end_to_end.conftest import run, start, warm_server, warm_workers, write  # noqa: F401
