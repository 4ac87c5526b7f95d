"""`parallax calibrate`: runs a job that measures the cluster as training jobs use it, and fits a profile."""
