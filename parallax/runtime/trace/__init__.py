"""Traces training steps: each rank's activities on one clock, and the rank that delayed the others."""
