"""The cost of checkpoints, with training stopped and with training running."""
