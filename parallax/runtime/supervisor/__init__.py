"""Supervises one rank: starts it, monitors it and terminates it. It imports neither TensorFlow nor MPI."""
