"""Benchmarks of Parallax: `python -m ops.bench COMMAND`."""
