"""How long scripts take that fit small models: by plain Keras, and by workers that start beside the script."""
