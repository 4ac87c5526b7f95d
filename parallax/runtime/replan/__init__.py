"""Switches a running job to another plan: the decision, the choice of plan, and the change itself."""
