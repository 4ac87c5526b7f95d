"""`parallax checkpoint`: operations on a checkpoint folder that need no job."""
