"""What is recorded while a script constructs its graph, and what workers get of it."""
