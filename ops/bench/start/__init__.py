"""Run times of scripts that fit small models: by plain Keras, and by workers that start along with the script."""
