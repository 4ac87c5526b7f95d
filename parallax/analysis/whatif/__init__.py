"""Predictions for hypothetical clusters, batches and sizes."""
