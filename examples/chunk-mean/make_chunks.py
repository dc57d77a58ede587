"""Makes the chunks of this example: readings of four stations, in NumPy files of 100 rows each.

It needs Python 3.8 and nothing else. The same seed gives the same bytes.

    python make_chunks.py [--out DIR] [--chunks N] [--rows N] [--seed N]
"""

import argparse
import random
import struct
from pathlib import Path

HERE = Path(__file__).resolve().parent
STATIONS = {"east": 11.0, "north": 4.0, "south": 17.5, "west": 9.0}


def write_npy(path, rows):
    """Writes rows of floats as an array of float32, as `numpy.save` does."""
    shape = f"({len(rows)}, {len(rows[0])})"
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    data = b"".join(struct.pack(f"<{len(row)}f", *row) for row in rows)
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data)


def main():
    parser = argparse.ArgumentParser(description="Make the chunks of the chunk-mean example.")
    parser.add_argument("--out", type=Path, default=HERE / "chunks", help="where they go (default: chunks/ beside this script)")
    parser.add_argument("--chunks", type=int, default=3, help="files of each station")
    parser.add_argument("--rows", type=int, default=100, help="readings of a file")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    chance = random.Random(args.seed)
    for station, mean in STATIONS.items():
        folder = args.out / station
        folder.mkdir(parents=True, exist_ok=True)
        for chunk in range(args.chunks):
            rows = []
            for _ in range(args.rows):
                is_good = float(chance.random() < 0.9)
                # Temperature, humidity, pressure; a broken reading has anything.
                reading = (chance.gauss(mean, 5), chance.uniform(30, 100), chance.gauss(1013, 8))
                rows.append((is_good, *(reading if is_good else [chance.uniform(-1e30, 1e30)] * 3)))
            write_npy(folder / f"{chunk:02}.npy", rows)


main()
