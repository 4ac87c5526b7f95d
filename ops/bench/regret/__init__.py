"""The regret of the planner on generated models: the chosen plan's step time over that of the best plan."""
