"""Runs on the machine that starts a job: launches the ranks, reads their output, and ends the job when a rank dies."""
