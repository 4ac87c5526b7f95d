"""Counts the rows that the steps of a program touch."""
