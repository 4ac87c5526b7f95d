"""Throughput by transport, for models, batches and numbers of workers."""
