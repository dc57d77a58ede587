"""Checks a finished run of this example: exactly one record for each page, no failure, and enough of the numbers right.

It needs Python 3.8 and nothing else, and it never starts a run.

    python check.py [--output DIR] [--labels FILE]      # exit code 0: all is well, 1: it is not, 2: usage
"""

import argparse
import csv
import json
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
FLOOR = 0.95


def expected_numbers(path):
    """File name to number, for every page. A number is text: it may begin with 0."""
    with open(path, newline="", encoding="utf-8") as file:
        return {row["file"]: row["number"] for row in csv.DictReader(file)}


def read_records(path, problems):
    """(file name, number) of each line. Lines that are no record become problems."""
    records = []
    with open(path, encoding="utf-8") as file:
        for line_number, line in enumerate(file, start=1):
            try:
                record = json.loads(line)
                name = record["item"].rsplit("/", 1)[-1]
                # One entry for each part of the page, in order: its classes, best first.
                records.append((name, "".join(classes[0]["label"] for classes in record["result"])))
            except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
                problems.append(f"{path}, line {line_number} is not a record: {error!r}")
    return records


def shorten(names):
    """The first few names, and how many more there are."""
    names = sorted(names)
    rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + rest


def check_set(records, expected, problems):
    """Every page once, and nothing else."""
    counts = Counter(name for name, _ in records)
    missing = expected.keys() - counts.keys()
    strange = counts.keys() - expected.keys()
    doubled = [name for name, n in counts.items() if n > 1]
    for what, names in (("no record for", missing), ("more than one record for", doubled), ("not among the labels:", strange)):
        if names:
            problems.append(f"{what} {shorten(names)}")


def check_failures(path, problems):
    """A run without failures leaves the file empty."""
    if not path.is_file():
        problems.append(f"there is no {path}")
        return
    with open(path, encoding="utf-8") as file:
        n_failures = sum(1 for line in file if line.strip())
    if n_failures:
        problems.append(f"{n_failures} failures in {path}")


def main():
    parser = argparse.ArgumentParser(description="Check a finished run of the pages example.")
    parser.add_argument("--output", type=Path, default=HERE / "out", help="the run's output folder (default: out/ beside this script)")
    parser.add_argument("--labels", type=Path, default=HERE / "labels.csv", help="the right numbers (default: labels.csv here)")
    asked = parser.parse_args()
    output = asked.output
    results = output / "results.jsonl"
    if not results.is_file():
        print(f"there is no {results}: run `orchestra run workflow.toml` first, or name its folder with --output", file=sys.stderr)
        return 1

    problems = []
    expected = expected_numbers(asked.labels)
    records = read_records(results, problems)
    check_set(records, expected, problems)
    check_failures(output / "failures.jsonl", problems)

    # A page without a record counts as wrong, and a doubled one counts once.
    read = dict(records)
    n_right = sum(read.get(name) == number for name, number in expected.items())
    accuracy = n_right / len(expected)
    print(f"{len(records)} records for {len(expected)} pages, {n_right} right, accuracy {accuracy:.4f}")
    if accuracy < FLOOR:
        problems.append(f"accuracy {accuracy:.4f} is below {FLOOR}")

    for problem in problems:
        print(f"wrong: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
