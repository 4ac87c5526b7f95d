"""The session that a worker's script uses: its names, fetches, runs and hooks."""
