"""Formats plans for readers: as text, as a difference of two plans, and as HTML pages."""
