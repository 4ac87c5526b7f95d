"""Plans, predictions and what-ifs as pages that need nothing else."""
