"""`parallax calibrate`: a job that measures the cluster as jobs use it, and the profile that is fitted to it."""
