"""Traces of training steps: what each rank did when, on one clock, and whom the others waited for."""
