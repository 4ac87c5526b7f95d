"""`parallax check`: what of a script would be refused or is suspicious, found in seconds without workers."""
