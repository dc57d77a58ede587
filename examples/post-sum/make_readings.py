"""Makes the readings of this example: `readings.npy`, f32 [400, 64], quarters from -4 to 4, so that all sums of squares are exact.

    python make_readings.py [--rows N] [--out FILE]

It needs Python 3.8 and nothing else.
"""

import argparse
import random
import struct
from pathlib import Path

HERE = Path(__file__).resolve().parent


def npy(numbers, shape):
    """The bytes of a `.npy` file of version 1.0."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(10 + len(header) + 1) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + struct.pack(f"<{len(numbers)}f", *numbers)


def main():
    parser = argparse.ArgumentParser(description="Make readings for the post-sum example.")
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--out", type=Path, default=HERE / "readings.npy")
    asked = parser.parse_args()
    chance = random.Random(64)
    numbers = []
    for _ in range(asked.rows):
        loud = chance.choice([2, 8, 16])
        numbers += [chance.randint(-loud, loud) / 4 for _ in range(64)]
    asked.out.write_bytes(npy(numbers, (asked.rows, 64)))


main()
