"""The cost model: seconds of a route and of a step, from measurements of a cluster and a model."""
