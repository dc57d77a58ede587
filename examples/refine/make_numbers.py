"""Makes the numbers whose square roots this example finds: `numbers.npy`, f32 [200, 1], from 0.01 to 1,000,000.

    python make_numbers.py [--count N] [--out FILE]

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
    parser = argparse.ArgumentParser(description="Make numbers for the refine example.")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--out", type=Path, default=HERE / "numbers.npy")
    asked = parser.parse_args()
    chance = random.Random(5)
    numbers = [10 ** chance.uniform(-2, 6) for _ in range(asked.count)]
    asked.out.write_bytes(npy(numbers, (asked.count, 1)))


main()
