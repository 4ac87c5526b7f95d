"""The assignment of a graph's nodes to stages, and the messages between stages."""
