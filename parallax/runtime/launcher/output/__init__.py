"""What ranks print, as the launcher shows and stores it."""
