"""Jobs are started as those of tests/end_to_end."""

from tests.end_to_end.conftest import start, warm_server, warm_workers, write  # noqa: F401
