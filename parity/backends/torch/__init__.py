"""The PyTorch side: running, counting, islands."""
