"""Formats plans, predictions and what-if simulations as self-contained HTML pages."""
