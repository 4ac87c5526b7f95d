"""The decisions: the plan, its predictions, and the rewrites that follow from it."""
