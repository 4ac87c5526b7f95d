"""Cuts a model into stages: the forward pass where it costs least, and all else with it."""
