"""A cluster's twin: accelerators that take time and no cores, so that many hosts fit on a few cores.

What is dilated and what is not stands in docs/benchmarks.md.
"""
