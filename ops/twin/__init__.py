"""The twin of a cluster: emulated accelerators take time but no cores, so that many hosts fit on a few cores.

docs/benchmarks.md lists what is dilated.
"""
