"""Parallax against the systems a user would pick instead, side by side on one emulated cluster."""
