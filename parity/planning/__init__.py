"""`parity account`: what a training takes in memory, time and money, from the sizes alone."""
