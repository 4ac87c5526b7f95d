"""Faults in jobs, simulated by the million and real ones: does each end, with the right words, and leave nothing?"""
