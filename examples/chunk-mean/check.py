"""Checks a finished run of this example: the mean of each station, to the last bit, and how many readings are in it.

It needs Python 3.8 and nothing else, and it never starts a run.

    python check.py [--output DIR] [--chunks DIR]      # exit code 0: all is well, 1: it is not
"""

import argparse
import ast
import csv
import json
import struct
import sys
from fractions import Fraction
from pathlib import Path

HERE = Path(__file__).resolve().parent


def read_npy(path):
    """The rows of an array of float32 that `make_chunks.py` or `numpy.save` wrote."""
    data = path.read_bytes()
    begin = 10 + struct.unpack_from("<H", data, 8)[0]
    n_rows, n_columns = ast.literal_eval(data[10:begin].decode())["shape"]
    return [struct.unpack_from(f"<{n_columns}f", data, begin + 4 * n_columns * row) for row in range(n_rows)]


def main():
    parser = argparse.ArgumentParser(description="Check a finished run of the chunk-mean example.")
    parser.add_argument("--output", type=Path, default=HERE / "out", help="the run's output folder (default: out/ beside this script)")
    parser.add_argument("--chunks", type=Path, default=HERE / "chunks", help="the chunks that it read (default: chunks/ beside this script)")
    args = parser.parse_args()

    good = {}
    for path in args.chunks.glob("*/*.npy"):
        good.setdefault(path.parent.name, []).extend(row for row in read_npy(path) if row[0] >= 0.5)
    with open(args.output / "means.csv", newline="", encoding="utf-8") as file:
        found = {row["item"]: row for row in csv.DictReader(file)}
    if found.keys() != good.keys():
        sys.exit(f"there are means of {sorted(found)}, and chunks of {sorted(good)}")
    for station, rows in sorted(good.items()):
        if int(found[station]["rows"]) != len(rows):
            sys.exit(f"the mean of `{station}` is of {found[station]['rows']} readings, and {len(rows)} are good")
        for column in range(len(rows[0])):
            exact = float(sum(Fraction(row[column]) for row in rows) / len(rows))  # The nearest float64.
            mean = float(found[station][f"mean.{column}"])
            if mean != exact:
                sys.exit(f"number {column} of `{station}` has mean {mean}, and it is {exact}")
        print(f"{station:6} {len(rows)} good readings, mean temperature {float(found[station]['mean.1']):.4f}")
    with open(args.output / "number.jsonl", encoding="utf-8") as file:
        number = json.loads(file.read())["result"]["rows"]
    if number != sum(len(rows) for rows in good.values()):
        sys.exit(f"{number} readings are counted, and {sum(len(rows) for rows in good.values())} are good")


main()
