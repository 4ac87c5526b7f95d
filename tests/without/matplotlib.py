"""As if matplotlib were not installed; see tests/conftest.py."""

raise ImportError("the processes that tests start are without matplotlib")
