"""Makes pages of text: PNG files, and `texts.jsonl` with the lines on each page.

    python make_pages.py --out DIR [--pages N] [--seed S]

It needs Pillow (11 to 13), whose own font it draws with, and nothing else. The same arguments give the same pages with the same Pillow, whatever was made
before. A page has headings, paragraphs, a table of two columns and a short line that stands upside down; some are turned a little.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

WORDS = """about above across after again air all almost along also always animal answer area around ask away back base become before began behind
below best better between bird black blue boat body book both box bring brought build busy call came car carry centre certain change check city class
clear close cold colour come common complete cost country course cover cross dark day decide deep develop differ direct distance dog door down draw
drive dry during each early earth east easy eat end engine enough even event ever every example eye face fact fall family far farm fast father feel few
field figure final find fine fire first fish five floor fly follow food foot force form found four free friend from front full game garden gave general
girl give gold good govern great green ground group grow half hand happen hard head hear heat heavy help here high hold home horse hour house hundred
idea inch include island keep kind king knew land language large last late laugh lay lead learn leave left less letter level life light line list listen
little live long look love low machine main make many map mark measure men might mile mind minute money month moon morning mother mountain move music
name near need never night north note nothing notice number object ocean often once open order paper part pass pattern people perhaps person picture
piece place plain plan plane plant play point port pose position possible pound power problem produce product pull question quick rain reach read ready
real record remember rest right river road rock room round rule same science school second self sentence serve seven several shape ship short show side
simple since sing size sleep slow small snow some song soon sound south special spell stand star start state stay step stood stop story street strong
study sun sure surface system table tail take talk teach tell test thing think thought thousand through time together told took town travel tree true
turn under unit until usual very voice vowel wait walk want war warm watch water week weight well west wheel where which white whole wind wonder wood
word work world year young""".split()

# Longer side at most 1.39 times the shorter one.
WIDTHS, HEIGHTS = (560, 736), (700, 780)


class Page:
    """A page that is written from its top to its bottom."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.width, self.height = rng.randint(*WIDTHS), rng.randint(*HEIGHTS)
        self.paper = rng.randint(225, 255)
        self.image = Image.new("RGB", (self.width, self.height), (self.paper, self.paper, self.paper - rng.randint(0, 15)))
        self.pen = ImageDraw.Draw(self.image)
        self.margin = rng.randint(36, 64)
        self.y = self.margin
        self.lines: list[str] = []

    def ink(self) -> tuple[int, int, int]:
        dark = self.rng.randint(0, 70)
        return (dark, dark, min(dark + self.rng.choice((0, 0, 60)), 255))

    def words(self, n: int) -> str:
        """So many words; some are numbers or amounts, some have a capital letter."""
        rng, words = self.rng, []
        for _ in range(n):
            kind = rng.random()
            if kind < 0.06:
                words.append(str(rng.randint(1, 9999)))
            elif kind < 0.09:
                words.append(f"{rng.randint(1, 999)}.{rng.randint(0, 99):02}")
            else:
                word = rng.choice(WORDS)
                words.append(word.capitalize() if kind > 0.9 else word)
        return " ".join(words)

    def put(self, x: float, y: float, text: str, font: ImageFont.FreeTypeFont) -> None:
        self.pen.text((x, y), text, font=font, fill=self.ink())
        self.lines.append(text)

    def has_room(self, height: float) -> bool:
        return self.y + height < self.height - self.margin

    def heading(self) -> None:
        size = self.rng.randint(26, 38)
        if self.has_room(size * 1.6):
            self.put(self.margin, self.y, self.words(self.rng.randint(1, 3)).capitalize(), ImageFont.load_default(size))
            self.y += size * 1.6

    def paragraph(self) -> None:
        size = self.rng.randint(16, 24)
        font = ImageFont.load_default(size)
        # At most about 50 letters, as in a column of print.
        room = min(self.width - 2 * self.margin, 24 * size)
        words = self.words(self.rng.randint(8, 40)).capitalize().split()
        line: list[str] = []
        for at, word in enumerate(words):
            line.append(word)
            is_last = at + 1 == len(words)
            if not is_last and font.getlength(" ".join([*line, words[at + 1]])) <= room:
                continue
            if not self.has_room(size * 1.5):
                return
            self.put(self.margin, self.y, " ".join(line) + ("." if is_last else ""), font)
            self.y += size * 1.5
            line = []
        self.y += size * 0.8

    def table(self) -> None:
        size = self.rng.randint(16, 22)
        font = ImageFont.load_default(size)
        for _ in range(self.rng.randint(2, 6)):
            if not self.has_room(size * 1.7):
                break
            amount = f"{self.rng.randint(1, 9999)}.{self.rng.randint(0, 99):02}"
            self.put(self.margin, self.y, self.words(self.rng.randint(1, 2)), font)
            self.put(self.width - self.margin - font.getlength(amount), self.y, amount, font)
            self.y += size * 1.7
        self.y += size * 0.8

    def stamp(self) -> None:
        """A line that stands upside down."""
        size = self.rng.randint(20, 28)
        font = ImageFont.load_default(size)
        text = self.words(2)
        if not self.has_room(size * 2.2):
            return
        stamp = Image.new("RGB", (int(font.getlength(text)) + 8, int(size * 1.5)), self.image.getpixel((0, 0)))
        ImageDraw.Draw(stamp).text((4, 2), text, font=font, fill=self.ink())
        self.image.paste(stamp.rotate(180), (self.width - self.margin - stamp.width, int(self.y)))
        self.lines.append(text)
        self.y += size * 2.2

    def fill(self) -> None:
        self.heading()
        if self.rng.random() < 0.3:
            self.stamp()
        while self.has_room(60):
            self.rng.choice((self.paragraph, self.paragraph, self.table, self.heading))()
        if self.rng.random() < 0.25:
            paper = self.image.getpixel((0, 0))
            self.image = self.image.rotate(self.rng.uniform(-2, 2), Image.Resampling.BICUBIC, fillcolor=paper)


def main() -> int:
    parser = argparse.ArgumentParser(description="Make pages of text.")
    parser.add_argument("--out", type=Path, required=True, help="folder for texts.jsonl and pages/")
    parser.add_argument("--pages", type=int, default=200, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    asked = parser.parse_args()
    if asked.pages < 1:
        parser.error("--pages is at least 1")
    folder = asked.out / "pages"
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("page-*.png"):
        stale.unlink()
    with open(asked.out / "texts.jsonl", "w", encoding="utf-8") as file:
        for number in range(1, asked.pages + 1):
            # A page depends on the seed and its own number, not on the pages before it.
            page = Page(random.Random(f"{asked.seed}-{number}"))
            page.fill()
            name = f"page-{number:04}.png"
            page.image.save(folder / name, optimize=True)
            file.write(json.dumps({"page": name, "lines": page.lines}) + "\n")
    print(f"{asked.pages} pages in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
