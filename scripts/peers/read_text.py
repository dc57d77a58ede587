"""Reads pages with the example read-text and with RapidOCR in turns, compares their words, and prints pages per second of both.

Start it with scripts/bench-read-text.sh. Times are those that either says of its own work: models are loaded before RapidOCR's begin, and workers start within those of orchestra.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "read-text"


def run(command: list[str | Path]) -> str:
    done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(str(part) for part in command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def ours(orchestra: Path, pages: Path, out: Path, n: int) -> float:
    shutil.rmtree(out, ignore_errors=True)
    run([orchestra, "run", EXAMPLE / "workflow.toml", "--output", out, "--set", f"sources.pages.paths=[{json.dumps(str(pages))}]"])
    account = json.loads((out / "run.json").read_text())
    if account["items"]["done"] != n:
        sys.exit(f"{account['items']['done']} of {n} pages were read")
    return n / account["seconds"]


def theirs(pages: Path, reference: Path) -> float:
    said = run([sys.executable, EXAMPLE / "rapid.py", pages, reference])
    return float(said.split(" pages per second")[0].rsplit(" ", 1)[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--orchestra", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--pages", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    pages = asked.folder / f"pages-{asked.pages}"
    if not pages.exists():
        made = asked.folder / "made"
        shutil.rmtree(made, ignore_errors=True)
        run([sys.executable, EXAMPLE / "make_pages.py", "--out", made, "--pages", asked.pages])
        made.rename(pages)
    out, reference, pictures = asked.folder / "out", asked.folder / "reference.jsonl", pages / "pages"
    rates: list[tuple[float, float]] = []
    for number in range(asked.rounds):
        # The one that begins changes from round to round.
        if number % 2:
            their = theirs(pictures, reference)
            rates.append((ours(asked.orchestra, pictures, out, asked.pages), their))
        else:
            our = ours(asked.orchestra, pictures, out, asked.pages)
            rates.append((our, theirs(pictures, reference)))
        our, their = rates[-1]
        print(f"round {number + 1}: orchestra {our:.3f}, RapidOCR {their:.3f} pages per second, {our / their:.2f} times", flush=True)
    check = [sys.executable, EXAMPLE / "check.py", "--output", out, "--reference", reference, "--texts", pages / "texts.jsonl"]
    checked = subprocess.run(check, text=True, capture_output=True)
    print(checked.stdout + checked.stderr, end="")
    our, their = (statistics.median(rate[at] for rate in rates) for at in (0, 1))
    ratio = statistics.median(our / their for our, their in rates)
    print(f"median of {asked.rounds} rounds of {asked.pages} pages: orchestra {our:.3f}, RapidOCR {their:.3f} pages per second, {ratio:.2f} times")
    return checked.returncode


if __name__ == "__main__":
    sys.exit(main())
