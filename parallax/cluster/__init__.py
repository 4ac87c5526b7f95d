"""What machines there are: the resource file and what it says."""
