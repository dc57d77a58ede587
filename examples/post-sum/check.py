"""Checks a finished run of this example: the level of each reading, both totals and the mean are those of plain Python.

It needs Python 3.8 and nothing else, and it never starts a run.

    python check.py [--output DIR]      # exit code 0: all is well, 1: it is not
"""

import argparse
import csv
import struct
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def f32(number):
    """The nearest f32, as a record has it in no more digits than it needs."""
    return struct.unpack("<f", struct.pack("<f", number))[0]


def table(file):
    with open(file, newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def main():
    parser = argparse.ArgumentParser(description="Check a finished run of the post-sum example.")
    parser.add_argument("--output", type=Path, default=HERE / "out", help="the run's output folder (default: out/ beside this script)")
    output = parser.parse_args().output
    data = (HERE / "readings.npy").read_bytes()
    start = 10 + struct.unpack_from("<H", data, 8)[0]
    numbers = struct.unpack(f"<{(len(data) - start) // 4}f", data[start:])
    squares = [[x * x for x in numbers[at : at + 64]] for at in range(0, len(numbers), 64)]
    # Quarters and their squares are exact in f32, and so are these sums.
    expected = {f"readings.npy[{at}]": sum(row) for at, row in enumerate(squares)}

    levels = table(output / "levels.csv")
    found = {row["item"]: (f32(float(row["energy"])), f32(float(row["mean"])), row["is_loud"]) for row in levels}
    wanted = {item: (energy, energy / 64, str(energy > 256).lower()) for item, energy in expected.items()}
    if found != wanted or len(levels) != len(wanted):
        wrong = [item for item in wanted if found.get(item) != wanted[item]]
        sys.exit(f"{len(wrong)} of {len(wanted)} readings are missing or wrong: {wrong[:3]}")
    (total,), (louds,) = table(output / "total.csv"), table(output / "louds.csv")
    if (float(total["sum"]), int(total["rows"])) != (sum(expected.values()), len(expected)):
        sys.exit(f"the total is {total}, expected {sum(expected.values())} of {len(expected)} readings")
    (whole,) = table(output / "whole.csv")
    if float(whole["mean"]) != sum(expected.values()) / len(expected) / 64:
        sys.exit(f"the mean of all readings is {whole['mean']}, and the total is {total['sum']}")
    n_loud = sum(square > 9.0 for row in squares for square in row)
    if int(float(louds["sum"])) != n_loud:
        sys.exit(f"{louds['sum']} loud numbers, expected {n_loud}")
    loud_readings = sum(loud == "true" for _, _, loud in found.values())
    print(f"{len(found)} readings, {loud_readings} of them loud; total energy {total['sum']}, {n_loud} loud numbers: all exact")


main()
