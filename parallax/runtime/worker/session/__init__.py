"""The session that a worker's script runs on: its names, fetches, runs and hooks."""
