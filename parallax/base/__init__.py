"""Foundations of all other packages: checked file values, private files, a status line, and post-import callbacks."""
