"""Compares what a run of this example read with what RapidOCR read: line for line, word for word.

It needs Python 3.8 and nothing else, and it never starts a run.

    python check.py [--output DIR] [--reference FILE] [--texts FILE]      # exit code 0: they agree, 1: they do not, 2: usage

They agree where at least 99 % of the words are equal on lines of at most 20 times their height. Longer lines are counted apart: this example squeezes
them to that, RapidOCR widens what its reader sees, and either is wrong where the other is right.
"""

import argparse
import json
import math
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
FLOOR = 0.99
# 960 pixels for a height of 48.
LONGEST = 20


class Line:
    """Where a line stands on its page, and what it says."""

    def __init__(self, corners, text):
        first, second, third, _ = corners
        sides = math.dist(first, second), math.dist(second, third)
        self.across, self.is_long = min(sides), max(sides) > LONGEST * min(sides)
        self.centre = [sum(corner[axis] for corner in corners) / 4 for axis in (0, 1)]
        self.words = Counter(text.split())


def read_pages(path, page, read):
    """What `read` makes of each page of a file of JSON lines, by its name. Two records of a page are an error."""
    pages = {}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            record = json.loads(line)
            name = record[page].rsplit("/", 1)[-1]
            if name in pages:
                raise ValueError(f"{path}, line {number}: {name} is there twice")
            pages[name] = read(record)
    return pages


def n(words):
    return sum(words.values())


def compare(ours, theirs):
    """Of short and of long lines: the words that both have and those that the one has that has more. Lines that only one has are among them."""
    common, total = [0, 0], [0, 0]
    left = list(ours)
    for line in theirs:
        nearest = min(left, key=lambda other: math.dist(line.centre, other.centre), default=None)
        words = Counter()
        if nearest is not None and math.dist(line.centre, nearest.centre) < line.across / 2:
            left.remove(nearest)
            words = nearest.words
        common[line.is_long] += n(words & line.words)
        total[line.is_long] += max(n(words), n(line.words))
    for line in left:
        total[line.is_long] += n(line.words)
    return common, total


def right(pages, texts):
    """Words of the pages that were drawn and read."""
    read = {name: sum((line.words for line in lines), Counter()) for name, lines in pages.items()}
    return sum(n(read[name] & words) for name, words in texts.items() if name in read)


def main():
    parser = argparse.ArgumentParser(description="Compare a finished run of this example with RapidOCR.")
    parser.add_argument("--output", type=Path, default=HERE / "out", help="the run's output folder (default: out/ beside this script)")
    parser.add_argument("--reference", type=Path, default=HERE / "reference.jsonl", help="what rapid.py wrote (default: that of the pages here)")
    parser.add_argument("--texts", type=Path, default=HERE / "texts.jsonl", help="what make_pages.py wrote (default: that of the pages here)")
    asked = parser.parse_args()
    try:
        ours = read_pages(asked.output / "results.jsonl", "item", lambda r: [Line(one["polygon"], one["text"]) for one in r["result"]])
        theirs = read_pages(asked.reference, "page", lambda r: [Line(one["box"], one["text"]) for one in r["lines"]])
        texts = read_pages(asked.texts, "page", lambda r: Counter(word for line in r["lines"] for word in line.split()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"nothing to compare: {error!r}", file=sys.stderr)
        return 1
    if not theirs or ours.keys() != theirs.keys():
        print(f"{len(ours)} pages were read, and RapidOCR read {len(theirs)}; they must be the same", file=sys.stderr)
        return 1
    common, total = [0, 0], [0, 0]
    for name, lines in theirs.items():
        of_page = compare(ours[name], lines)
        for is_long in (0, 1):
            common[is_long] += of_page[0][is_long]
            total[is_long] += of_page[1][is_long]
    for what, is_long in ((f"lines up to {LONGEST} times as long as high", 0), ("longer lines", 1)):
        print(f"{what}: {common[is_long]} of {total[is_long]} words are those of RapidOCR, {common[is_long] / max(total[is_long], 1):.2%}")
    drawn = sum(n(words) for name, words in texts.items() if name in ours)
    for name, read in (("orchestra", ours), ("RapidOCR", theirs)):
        print(f"{name}: {right(read, texts)} of {drawn} words that were drawn, {right(read, texts) / max(drawn, 1):.2%}")
    return 0 if total[0] and common[0] >= FLOOR * total[0] else 1


if __name__ == "__main__":
    sys.exit(main())
