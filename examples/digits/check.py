"""Checks a finished run of this example: exactly one record for each image, and enough of them right.

It needs Python 3.8 and nothing else, and it never starts a run.

    python check.py [--output DIR]      # exit code 0: all is well, 1: it is not, 2: usage
"""

import argparse
import csv
import json
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
FLOOR = 0.975


def expected_labels():
    """File name to label, for every image of the example."""
    with open(HERE / "labels.csv", newline="", encoding="utf-8") as file:
        return {row["file"]: row["label"] for row in csv.DictReader(file)}


def read_records(path, problems):
    """(file name, best label) of each line. Lines that are no record become problems."""
    records = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                record = json.loads(line)
                name = record["item"].rsplit("/", 1)[-1]
                records.append((name, record["result"][0]["label"]))
            except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
                problems.append(f"{path}, line {number} is not a record: {error!r}")
    return records


def shorten(names):
    """The first few names, and how many more there are."""
    names = sorted(names)
    rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + rest


def check_set(records, expected, problems):
    """Every image once, and nothing else."""
    counts = Counter(name for name, _ in records)
    missing = expected.keys() - counts.keys()
    strange = counts.keys() - expected.keys()
    doubled = [name for name, n in counts.items() if n > 1]
    for what, names in (("no record for", missing), ("more than one record for", doubled), ("not in labels.csv:", strange)):
        if names:
            problems.append(f"{what} {shorten(names)}")


def main():
    parser = argparse.ArgumentParser(description="Check a finished run of the digits example.")
    parser.add_argument("--output", type=Path, default=HERE / "out", help="the run's output folder (default: out/ beside this script)")
    results = parser.parse_args().output / "results.jsonl"
    if not results.is_file():
        print(f"there is no {results}: run `orchestra run workflow.toml` first, or name its folder with --output", file=sys.stderr)
        return 1

    problems = []
    expected = expected_labels()
    records = read_records(results, problems)
    check_set(records, expected, problems)

    # An image without a record counts as wrong, and a doubled one counts once.
    best = dict(records)
    n_right = sum(best.get(name) == label for name, label in expected.items())
    accuracy = n_right / len(expected)
    print(f"{len(records)} records for {len(expected)} images, {n_right} right, accuracy {accuracy:.4f}")
    if accuracy < FLOOR:
        problems.append(f"accuracy {accuracy:.4f} is below {FLOOR}")

    for problem in problems:
        print(f"wrong: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
