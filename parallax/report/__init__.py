"""A plan for people: as text, as a difference of two, and as a page."""
