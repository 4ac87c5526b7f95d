"""`parallax check`: finds in seconds, without workers, what would be refused or looks suspicious in a script."""
