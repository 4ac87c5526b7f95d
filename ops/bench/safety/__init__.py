"""The cost of liveness checks and of the fence."""
