"""Looks, while a job runs, whether what the plan says is equal on all workers is equal."""
