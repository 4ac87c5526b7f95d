"""Measures Parallax: `python -m ops.bench COMMAND`."""
