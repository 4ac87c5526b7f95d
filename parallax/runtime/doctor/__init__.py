"""Looks at the hosts of a resource file before a job does: `parallax doctor`."""
