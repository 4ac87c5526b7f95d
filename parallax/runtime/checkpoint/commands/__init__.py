"""`parallax checkpoint`: what is done with a checkpoint folder without a job."""
