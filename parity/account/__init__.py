"""What a model costs, from its sizes alone: no framework, no NumPy."""
