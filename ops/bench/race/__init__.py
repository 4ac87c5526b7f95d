"""Compares Parallax with alternative systems on one emulated cluster."""
