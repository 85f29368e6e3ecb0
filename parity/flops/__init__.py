"""`parity flops`: what one step costs in matmul FLOPs, of a preset and of one's own code, by every method."""
