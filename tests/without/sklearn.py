"""As if scikit-learn were not installed; see tests/conftest.py."""

raise ImportError("the processes that tests start are without scikit-learn")
