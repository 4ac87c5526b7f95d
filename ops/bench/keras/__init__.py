"""The race's recommendation model in Keras, trained by `fit`, compared with its TF1 graph under `parallel_run`."""
