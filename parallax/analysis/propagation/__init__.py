"""Follows what each worker has of every tensor, from the batch to the updates: classes and rewrites."""
