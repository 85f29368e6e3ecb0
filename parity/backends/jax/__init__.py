"""The JAX side: running, counting, islands."""
