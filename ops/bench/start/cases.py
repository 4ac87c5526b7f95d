"""The cases of the script that `python -m ops.bench start` runs."""

LINES, RECURRENT, AGAIN, THREE = "ten lines", "recurrent", "again", "three models"
CASES = (LINES, RECURRENT, AGAIN, THREE)
