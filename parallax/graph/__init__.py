"""Graphs: nodes, TensorFlow's ops, variables, and the ownership of rows."""
