"""How true predicted steps are: at a link rate and on a number of hosts that no calibration was of."""
