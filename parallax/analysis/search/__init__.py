"""Chooses a route for every variable: the fastest of all combinations, with its bound."""
