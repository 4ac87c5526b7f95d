"""`parallax doctor`: checks the hosts of a resource file before a job uses them."""
