"""Checks during a job that state which the plan calls replicated is equal on all workers."""
