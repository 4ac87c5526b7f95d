"""What the script of `python -m ops.bench start` may be asked to run."""

LINES, RECURRENT, AGAIN, THREE = "ten lines", "recurrent", "again", "three models"
CASES = (LINES, RECURRENT, AGAIN, THREE)
