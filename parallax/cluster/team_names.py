"""The teams in which workers meet (parallax/native/teams.h)."""

WORKERS, HOST, ACROSS, LEADERS, GROUP = "workers", "host", "across", "leaders", "group"
STAGE, REPLICA = "stage", "replica"
