"""What all else builds upon: checked values of files, private files, a status line, and calls after an import."""
