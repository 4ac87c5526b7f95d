"""What it costs that a job knows who is alive, and who belongs to it."""
