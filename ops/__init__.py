"""Operating Parallax: installing, measuring."""
