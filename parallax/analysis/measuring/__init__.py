"""Counts what the steps of a program touch."""
