"""Runs a job: launch and supervision on one side, the workers' sessions on the other."""
