"""What increments take beside whole checkpoints, and whether a chain of them gives what a whole one has."""
