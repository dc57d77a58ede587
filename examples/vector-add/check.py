"""Checks a finished run of this example: its array is, bit for bit, the sum that numpy makes.

It needs numpy, and it never starts a run.

    python check.py [--output DIR] [--vectors FILE]      # exit code 0: all is well, 1: it is not
"""

import argparse
import sys
from pathlib import Path

import numpy

HERE = Path(__file__).resolve().parent


def main():
    parser = argparse.ArgumentParser(description="Check a finished run of the vector-add example.")
    parser.add_argument("--output", type=Path, default=HERE / "out", help="the run's output folder (default: out/ beside this script)")
    parser.add_argument("--vectors", type=Path, default=HERE / "vectors.npz", help="the arrays that it read (default: vectors.npz beside this script)")
    args = parser.parse_args()

    vectors = numpy.load(args.vectors)
    expected = vectors["a"] + vectors["b"]
    found = numpy.load(args.output / "sum" / "whole.npy")
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        sys.exit(f"the array is {found.dtype}{found.shape}, expected {expected.dtype}{expected.shape}")
    wrong = numpy.flatnonzero(found.view("u4") != expected.view("u4"))
    if len(wrong):
        at = wrong[0]
        sys.exit(f"{len(wrong)} numbers are wrong, first number {at}: {found[at]}, expected {expected[at]}")
    print(f"{len(found)} numbers, each with the bits that numpy gives")


main()
