"""Keeps the documentation true: generates tables from the code's definitions and runs the pages' commands."""
