"""Compares what a run of this example read with what RapidOCR read: line for line, word for word.

It needs Python 3.8 and nothing else, and it never starts a run.

    python check.py [--output DIR] [--reference FILE] [--texts FILE]      # exit code 0: they agree, 1: they do not, 2: usage

They agree where at least 99 % of all words are equal. A line that only one of them has counts with all its words.
"""

import argparse
import json
import math
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
FLOOR = 0.99


class Line:
    """Where a line stands on its page, and what it says."""

    def __init__(self, corners, text):
        first, second, third, _ = corners
        sides = math.dist(first, second), math.dist(second, third)
        self.across = min(sides)
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
    """The words that both have, and those that the one has that has more. Lines that only one has are among them."""
    common = total = 0
    left = list(ours)
    for line in theirs:
        nearest = min(left, key=lambda other: math.dist(line.centre, other.centre), default=None)
        words = Counter()
        if nearest is not None and math.dist(line.centre, nearest.centre) < line.across / 2:
            left.remove(nearest)
            words = nearest.words
        common += n(words & line.words)
        total += max(n(words), n(line.words))
    return common, total + sum(n(line.words) for line in left)


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
    of_pages = [compare(ours[name], lines) for name, lines in theirs.items()]
    common, total = (sum(of_page[at] for of_page in of_pages) for at in (0, 1))
    print(f"{common} of {total} words are those of RapidOCR, {common / max(total, 1):.2%}")
    drawn = sum(n(words) for name, words in texts.items() if name in ours)
    for name, read in (("orchestra", ours), ("RapidOCR", theirs)):
        print(f"{name}: {right(read, texts)} of {drawn} words that were drawn, {right(read, texts) / max(drawn, 1):.2%}")
    return 0 if total and common >= FLOOR * total else 1


if __name__ == "__main__":
    sys.exit(main())
