"""Which routes a variable may take, with their bytes, owners and memory."""
