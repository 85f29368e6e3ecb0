"""The floating-point formats that a check runs in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """A binary format.

    Significand bits (the hidden one included), smallest subnormal, largest finite number, and the type that holds it.
    """

    name: str
    precision: int
    smallest_subnormal: float
    largest: float
    held: str = ""

    @property
    def dtype(self) -> str:
        """Of arrays in this format: its own, unless it is another one's numbers with fewer bits."""
        return self.held or self.name

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of rounding to nearest."""
        return 2.0**-self.precision

    @property
    def half_of_digits(self) -> float:
        """A relative distance halfway between one rounding and the whole of a number."""
        return 2.0 ** -(self.precision // 2)


#: What NVIDIA GPUs from Ampere on can multiply float32 matrices in: 8 bits of exponent, 10 and the hidden one of
#: significand ("NVIDIA A100 Tensor Core GPU Architecture", 2020).
TENSORFLOAT32 = "tensorfloat32"

# IEEE 754-2019 table 3.5 (binary16, binary32, binary64); bfloat16 is binary32 cut to 16 bits
FORMATS = {
    "float64": Format("float64", 53, 2.0**-1074, (2 - 2.0**-52) * 2.0**1023),
    "float32": Format("float32", 24, 2.0**-149, (2 - 2.0**-23) * 2.0**127),
    "float16": Format("float16", 11, 2.0**-24, 65504.0),
    "bfloat16": Format("bfloat16", 8, 2.0**-133, (2 - 2.0**-7) * 2.0**127),
    TENSORFLOAT32: Format(TENSORFLOAT32, 11, 2.0**-136, (2 - 2.0**-10) * 2.0**127, "float32"),
}
