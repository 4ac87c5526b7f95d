"""What a graph is: nodes, TensorFlow's ops, variables, and who owns which rows."""
