"""The error of predicted step times, at a link rate and on a number of hosts that were not calibrated."""
