"""All-reduces by each method: seconds, bytes, and the sizes from which each method is fastest."""
