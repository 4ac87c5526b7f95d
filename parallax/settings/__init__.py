"""User settings: the configuration, its checks, and the environment."""
