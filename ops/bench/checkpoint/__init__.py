"""What a checkpoint costs the training that waits for it, and the training that goes on beside it."""
