"""One process beside each rank: starts it, watches it, and ends it. It imports neither TensorFlow nor MPI."""
