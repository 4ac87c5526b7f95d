"""What is recorded while a script builds its graph, and what workers get of it."""
