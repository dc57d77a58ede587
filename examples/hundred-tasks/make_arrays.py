"""Makes the arrays of this example: `arrays/00.npy` to `arrays/99.npy`, f32 [1, 64], whole numbers from -8 to 8.

    python make_arrays.py [--count N] [--out DIR]

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
    parser = argparse.ArgumentParser(description="Make arrays for the hundred-tasks example.")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--out", type=Path, default=HERE / "arrays")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    chance = random.Random(100)
    for at in range(asked.count):
        numbers = [chance.randint(-8, 8) for _ in range(64)]
        (asked.out / f"{at:02}.npy").write_bytes(npy(numbers, (1, 64)))


main()
