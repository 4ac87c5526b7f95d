"""What was measured of a cluster and of a model, and the files that hold it."""
