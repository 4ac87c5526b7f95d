"""Trains thousands of graphs by N workers and by one process; each must end equal or be refused."""
