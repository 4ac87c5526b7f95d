"""Time to a held-out loss in islands behind a slow link, compared with synchronous training."""
