"""Converts updates of whole tables whose untouched rows have a zero gradient to row-wise updates (`lazy_updates`)."""
