"""Displays and stores the output of ranks."""
