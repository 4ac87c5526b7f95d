"""The layout rule of each op, from layouts of its inputs to layouts of its outputs; op_rules.py has the table."""
