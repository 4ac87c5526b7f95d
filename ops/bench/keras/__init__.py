"""The race's recommendation model in Keras, trained by `fit`, against its TF1 graph under `parallel_run`."""
