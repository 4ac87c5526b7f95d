"""Shared parts of the benchmarks of plans: Parallax's commands in a lab, and jobs whose steps are timed in turns."""
