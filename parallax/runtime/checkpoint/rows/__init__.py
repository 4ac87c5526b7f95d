"""Locates the rows of variables in the workers, and reads and writes them while the job runs."""
