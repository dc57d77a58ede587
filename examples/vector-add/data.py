"""Makes the arrays of this example: `vectors.npz` with `a` and `b`, 10 million float32 each, from -1 to 1.

It needs Python 3.8 and nothing else. The same seed gives the same bytes. It takes a few seconds and 80 MB of disk.

    python data.py [--count N] [--seed N] [--out FILE]
"""

import argparse
import array
import random
import struct
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def head(count):
    """What `numpy.save` writes before the elements of an array of float32."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({count},), }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()


def main():
    parser = argparse.ArgumentParser(description="Make the arrays of the vector-add example.")
    parser.add_argument("--count", type=int, default=10_000_000, help="elements of each array")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE / "vectors.npz")
    args = parser.parse_args()

    chance = random.Random(args.seed)
    # As `numpy.savez` does it: an archive with an array in each member, not compressed.
    with zipfile.ZipFile(args.out, "w", zipfile.ZIP_STORED) as archive:
        for name in "ab":
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w") as member:
                member.write(head(args.count))
                for begin in range(0, args.count, 1_000_000):
                    numbers = array.array("f", (2 * chance.random() - 1 for _ in range(min(1_000_000, args.count - begin))))
                    if sys.byteorder == "big":
                        numbers.byteswap()
                    member.write(numbers.tobytes())


main()
