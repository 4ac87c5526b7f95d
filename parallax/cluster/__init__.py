"""Describes clusters: the resource file, its hosts, and their profiles."""
