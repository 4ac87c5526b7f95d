"""Meetings of islands: the centre, the averages of tables, and what checkpoints have of both."""
