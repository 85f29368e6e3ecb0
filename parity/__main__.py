"""`python -m parity` is the command `parity`."""

from .cli import main

main(prog_name="parity")
