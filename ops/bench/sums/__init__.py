"""Sums of workers by each method: seconds, bytes, and which method is fastest from which size on."""
