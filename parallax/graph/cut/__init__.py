"""Where the nodes of a graph run that is cut into stages, and what the stages send each other."""
