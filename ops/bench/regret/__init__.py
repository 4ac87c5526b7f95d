"""How much longer the chosen plan's steps are than those of the best of the others, on generated models."""
