"""The accuracy of the twin: step times of a network that cores compute, compared with those of its twin."""
