"""The steps of a graph carried out by workers of another process: requests, and what serves them."""
