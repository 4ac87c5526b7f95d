"""Peak memory of a job's processes, compared with the plan's estimate."""
