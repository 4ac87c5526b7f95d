"""A running job goes over to another plan: when, which, and how."""
