"""What a user calls, and the process that the script runs in: `parallel_run`, calls that workers carry out, options."""
