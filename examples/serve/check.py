"""Checks the server of this example, which must run: every picture of `../digits` is read by many clients at once, and steps of square roots are those
of plain Python.

It needs Python 3.8 and nothing else.

    python check.py [--server HOST:PORT]      # exit code 0: all is well, 1: it is not
"""

import argparse
import csv
import json
import struct
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from client import read_digit

DIGITS = Path(__file__).resolve().parent.parent / "digits"
FLOOR = 0.975


def f32(number):
    return struct.unpack("<f", struct.pack("<f", number))[0]


def root(server, a, steps=6):
    """The square root of each `a`: the model gives one step of Newton's method, `(x + a / x) / 2`."""
    x = [1.0] * len(a)
    for _ in range(steps):
        tensor = lambda name, data: {"name": name, "shape": [len(data), 1], "datatype": "FP32", "data": data}
        body = json.dumps({"inputs": [tensor("x", x), tensor("a", a)], "outputs": [{"name": "next"}]}).encode()
        with urllib.request.urlopen(f"http://{server}/v2/models/square-root/infer", body) as answer:
            x = json.load(answer)["outputs"][0]["data"]
    return x


def main():
    parser = argparse.ArgumentParser(description="Check the server of the example serve.")
    parser.add_argument("--server", default="127.0.0.1:8000")
    server = parser.parse_args().server
    with open(DIGITS / "labels.csv", newline="", encoding="utf-8") as file:
        expected = {row["file"]: row["label"] for row in csv.DictReader(file)}
    read = lambda name: read_digit(server, (DIGITS / "images" / name).read_bytes())[0]["label"]
    numbers = [[float(n) for n in range(first, first + 10)] for first in range(1, 101, 10)]
    with ThreadPoolExecutor(16) as clients:
        roots = clients.map(lambda a: root(server, a), numbers)
        labels = dict(zip(expected, clients.map(read, expected)))
        roots = list(roots)
    n_right = sum(labels[name] == label for name, label in expected.items())
    print(f"{len(labels)} pictures read, {n_right} right; 100 square roots")
    if n_right / len(expected) < FLOOR:
        sys.exit(f"less than {FLOOR:.1%} are right")
    for a, found in zip(sum(numbers, []), sum(roots, [])):
        x = 1.0
        for _ in range(6):
            x = f32((x + a / x) / 2)
        if abs(found - x) > 1e-5 * x:
            sys.exit(f"the root of {a} is {found}, and {x} by plain Python")


main()
