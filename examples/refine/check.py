"""Checks a finished run of this example: every number has the values of the same loop in plain Python, to the last bit.

It needs Python 3.8 and nothing else, and it never starts a run.

    python check.py [--output DIR]      # exit code 0: all is well, 1: it is not
"""

import argparse
import csv
import struct
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent


def f32(number):
    """The nearest f32. A sum, product or quotient of two f32 in doubles, rounded so, is the one that f32 arithmetic gives."""
    return struct.unpack("<f", struct.pack("<f", number))[0]


def numbers():
    data = (HERE / "numbers.npy").read_bytes()
    start = 10 + struct.unpack_from("<H", data, 8)[0]
    return struct.unpack(f"<{(len(data) - start) // 4}f", data[start:])


def refine(a, rounds, until):
    x = a
    for round in range(1, rounds + 1):
        x = f32(f32(x + f32(a / x)) * 0.5)
        residual = abs(f32(f32(x * x) - a))
        if residual <= until:
            break
    return x, residual, round


def check(file, rounds, until):
    with open(file, newline="", encoding="utf-8") as table:
        found = {row["item"]: (float(row["next"]), float(row["residual"]), int(row["rounds"])) for row in csv.DictReader(table)}
    expected = {f"numbers.npy[{at}]": refine(a, rounds, until) for at, a in enumerate(numbers())}
    if found.keys() != expected.keys():
        sys.exit(f"{file.name}: {len(found)} of {len(expected)} numbers have a line")
    for item, (x, residual, took) in found.items():
        if (f32(x), f32(residual), took) != expected[item]:
            sys.exit(f"{file.name}: `{item}` is {(x, residual, took)}, expected {expected[item]}")
    return Counter(took for _, _, took in found.values())


def main():
    parser = argparse.ArgumentParser(description="Check a finished run of the refine example.")
    parser.add_argument("--output", type=Path, default=HERE / "out", help="the run's output folder (default: out/ beside this script)")
    output = parser.parse_args().output
    check(output / "five.csv", 5, -1.0)
    took = check(output / "exact.csv", 60, 0.001)
    print(f"{sum(took.values())} numbers, each with the bits of the loop in Python; the exact roots took {min(took)} to {max(took)} rounds")


main()
