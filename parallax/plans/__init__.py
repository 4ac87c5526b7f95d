"""What is decided: the plan, what it predicts, and the rewrites that follow from it."""
