"""Which layout has every tensor of a step: one table of rules of ops, and a walk that applies it."""
