"""Lists the routes that a variable may take, with their bytes, owners and memory."""
