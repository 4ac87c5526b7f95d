"""The seconds of a route and of a step on a cluster and a model that were measured."""
