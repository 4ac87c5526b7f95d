"""Runs jobs: launches and supervises the ranks, and runs the workers' sessions."""
