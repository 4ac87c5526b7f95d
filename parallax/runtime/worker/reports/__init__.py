"""What a worker tells of its runs and graph: logs, warnings, and files."""
