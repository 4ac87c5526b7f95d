"""Reports on a worker's runs and graph: logs, warnings, and files."""
