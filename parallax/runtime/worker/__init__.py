"""Runs inside a rank: the user's script, its session, and the work around each run."""
