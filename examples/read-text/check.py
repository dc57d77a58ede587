"""Compares what a run of this example read with what RapidOCR read: page for page, word for word.

It needs Python 3.8 and nothing else, and it never starts a run.

    python check.py [--output DIR] [--reference FILE] [--texts FILE]      # exit code 0: at least 99 % of the words are equal, 1: they are not, 2: usage
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
FLOOR = 0.99


def read_lines(path, page, lines):
    """Page to the texts of its lines, of a file of JSON lines. Two records of a page are an error."""
    pages = {}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            record = json.loads(line)
            name = record[page].rsplit("/", 1)[-1]
            if name in pages:
                raise ValueError(f"{path}, line {number}: {name} is there twice")
            pages[name] = [one if isinstance(one, str) else one["text"] for one in record[lines]]
    return pages


def words(lines):
    return Counter(word for line in lines for word in line.split())


def share(ours, theirs):
    """Words that both have, as a share of all that one has: of each page the larger number. And the pages whose lines are all equal, in order."""
    common = total = equal_pages = 0
    for name, lines in theirs.items():
        a, b = words(ours.get(name, [])), words(lines)
        common += (a & b).total() if hasattr(a, "total") else sum((a & b).values())
        total += max(sum(a.values()), sum(b.values()))
        equal_pages += ours.get(name) == lines
    return common, total, equal_pages


def main():
    parser = argparse.ArgumentParser(description="Compare a finished run of this example with RapidOCR.")
    parser.add_argument("--output", type=Path, default=HERE / "out", help="the run's output folder (default: out/ beside this script)")
    parser.add_argument("--reference", type=Path, default=HERE / "reference.jsonl", help="what rapid.py wrote (default: that of the pages here)")
    parser.add_argument("--texts", type=Path, help="what make_pages.py wrote: how many words each of the two got right")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="print so many differences")
    asked = parser.parse_args()
    try:
        ours = read_lines(asked.output / "results.jsonl", "item", "result")
        theirs = read_lines(asked.reference, "page", "lines")
        texts = asked.texts and read_lines(asked.texts, "page", "lines")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"nothing to compare: {error!r}", file=sys.stderr)
        return 1
    if not theirs or ours.keys() != theirs.keys():
        print(f"{len(ours)} pages were read, and RapidOCR read {len(theirs)}; they must be the same", file=sys.stderr)
        return 1
    common, total, equal_pages = share(ours, theirs)
    print(f"{common} of {total} words are equal, {common / max(total, 1):.4%}; {equal_pages} of {len(theirs)} pages have the same lines in the same order")
    if texts:
        for name, read in (("orchestra", ours), ("RapidOCR", theirs)):
            right, of, _ = share(read, texts)
            print(f"{name}: {right} of {of} words are right, {right / max(of, 1):.4%}")
    for name in sorted(theirs):
        for line in [f"- {line}" for line in theirs[name] if line not in ours[name]] + [f"+ {line}" for line in ours[name] if line not in theirs[name]]:
            if asked.show > 0:
                asked.show -= 1
                print(name, line)
    return 0 if total and common / total >= FLOOR else 1


if __name__ == "__main__":
    sys.exit(main())
