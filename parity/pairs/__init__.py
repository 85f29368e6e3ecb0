"""The pairs that ship with the project; the only part of parity that knows jaxcore and torchref."""
