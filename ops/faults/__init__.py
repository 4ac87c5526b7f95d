"""Injects faults into simulated and real jobs; each must end with the right message and leave no process or file."""
