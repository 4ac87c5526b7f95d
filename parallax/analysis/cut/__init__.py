"""Cuts a model into stages: the forward pass at the lowest cost, and all other nodes accordingly."""
