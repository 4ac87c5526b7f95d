"""Inside a rank: the session and what happens around its runs."""
