"""Compares the cost of incremental and full checkpoints, and checks that a chain restores the values of a full one."""
