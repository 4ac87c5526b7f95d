"""Graphs by the thousand, each trained by N workers and by one process, to be equal or refused."""
