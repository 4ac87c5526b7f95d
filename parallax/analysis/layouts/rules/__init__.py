"""One rule for each op: layouts of its inputs to layouts of its outputs; op_rules.py has the table."""
