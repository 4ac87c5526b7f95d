"""A job that is started again, or waits for its next call: decisions, spare jobs, and threads."""
