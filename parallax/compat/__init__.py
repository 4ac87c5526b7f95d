"""The surface of Parallax 2019 that is nothing else: shards of the input and the partitioner."""
