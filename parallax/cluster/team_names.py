"""The teams in which workers meet (parallax/native/teams.h).

An island is a GROUP of hosts. Its workers are replicas, so REPLICA has the workers with one place in their islands.
"""

WORKERS, HOST, ACROSS, LEADERS, GROUP = "workers", "host", "across", "leaders", "group"
STAGE, REPLICA = "stage", "replica"
