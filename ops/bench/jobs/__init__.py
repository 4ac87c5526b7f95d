"""What the benchmarks of plans share: commands of Parallax in a lab, and jobs whose steps are timed in turns."""
