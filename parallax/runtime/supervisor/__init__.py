"""One process beside each rank: starts its rank, watches it, and ends it. It imports neither TensorFlow nor MPI."""
