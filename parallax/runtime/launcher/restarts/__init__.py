"""Restarts jobs and keeps them between calls: decisions, spare jobs, and threads."""
