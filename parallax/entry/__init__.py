"""User entry points, in the process that runs the script: `parallel_run`, calls that workers execute, command line."""
