"""Transports side by side: which carries the exchanges of which model, batch and number of workers how fast."""
