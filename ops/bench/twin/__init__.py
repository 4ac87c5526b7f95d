"""Whether the twin tells what a cluster does: a network that cores can compute, computed and in the twin."""
