"""Checks a finished run of this example: each array has one line, with the sum of its squares.

It needs Python 3.8 and nothing else, and it never starts a run.

    python check.py [--output DIR]      # exit code 0: all is well, 1: it is not
"""

import argparse
import csv
import json
import struct
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def numbers(file):
    data = file.read_bytes()
    start = 10 + struct.unpack_from("<H", data, 8)[0]
    return struct.unpack(f"<{(len(data) - start) // 4}f", data[start:])


def main():
    parser = argparse.ArgumentParser(description="Check a finished run of the hundred-tasks example.")
    parser.add_argument("--output", type=Path, default=HERE / "out", help="the run's output folder (default: out/ beside this script)")
    output = parser.parse_args().output
    expected = {f"{file.name}[0]": sum(x * x for x in numbers(file)) for file in (HERE / "arrays").glob("*.npy")}
    found = {}
    with open(output / "results.csv", newline="", encoding="utf-8") as table:
        for row in csv.DictReader(table):
            if row["item"] in found:
                sys.exit(f"`{row['item']}` has two lines")
            found[row["item"]] = float(row["energy"])
    # Sums of squares of small whole numbers are exact.
    if found != expected:
        wrong = [item for item in expected if found.get(item) != expected[item]]
        sys.exit(f"{len(wrong)} arrays are missing or wrong, {wrong[0]} among them")
    report = json.loads((output / "run.json").read_text(encoding="utf-8"))
    restarts = sum(device["restarts"] for device in report["devices"])
    print(f"{len(found)} arrays, all sums exact, the largest {max(found.values()):.0f}; {restarts} workers were replaced")


main()
