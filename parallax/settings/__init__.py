"""What a user can set: the configuration, its checks, and the environment."""
