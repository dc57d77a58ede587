"""Checks a finished run of this example: one array for each reading, with the bits that numpy gives. It never starts a run.

    python check.py [--output DIR]      # exit code 0: all is well, 1: it is not
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent


def main():
    parser = argparse.ArgumentParser(description="Check a finished run of the pycuda-queue example.")
    parser.add_argument("--output", type=Path, default=HERE / "out", help="the run's output folder (default: out/ beside this script)")
    folder = parser.parse_args().output / "calibrated"

    # All of these numbers are exact, so it does not matter whether a product and a sum are rounded once or twice.
    expected = np.float32(2.5) * np.load(HERE / "../post-sum/readings.npy") + np.float32(1)
    found = {}
    for line in (folder / "index.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["index"] in found:
            sys.exit(f"`{record['item']}` is there twice")
        found[record["index"]] = np.load(folder / record["file"])
    if sorted(found) != list(range(len(expected))):
        sys.exit(f"{len(found)} of {len(expected)} readings are there")
    for index, array in found.items():
        if array.dtype != np.float32 or not np.array_equal(array, expected[index]):
            sys.exit(f"reading {index}: {array}, expected {expected[index]}")
    print(f"{len(found)} readings, each with the bits that numpy gives")


main()
