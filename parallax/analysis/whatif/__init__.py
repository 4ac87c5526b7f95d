"""Reckons with other clusters, batches and sizes than those at hand."""
