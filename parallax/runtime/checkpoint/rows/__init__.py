"""Where a worker has the rows of variables, and how they are read and written while it runs."""
