"""Makes pages of handwritten digits: PNG files, and `labels.csv` with the number on each page.

    python make_pages.py --out DIR --pages N [--digits MIN MAX] [--seed S] [--split held-out|train]

The pages of this example come from:

    python make_pages.py --out examples/pages --pages 300 --digits 3 8 --seed 1 --split held-out

They lie in `pages/` below the folder. The same arguments give the same pages, whatever was made before. It needs what
models/requirements.txt pins, without torch and onnx.
"""

from __future__ import annotations

import argparse
import csv
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

# The split of models/train_digits.py: no digit that a model of this repository was trained on is on a held-out page.
SPLIT_SEED = 7
HELD_OUT = 400

INK = 0.35  # where a glyph's mask is above this, it counts as ink
ROOM = 1.15  # side of a digit's box, relative to the longer side of its ink
LEVELS = 8  # pixels are rounded to multiples of this, so that the files are small


@dataclass(frozen=True)
class Page:
    """A page as u8 [height, width], the digits on it from left to right, and their boxes `x1, y1, x2, y2` in pixels as f64 [n, 4]."""

    gray: np.ndarray
    digits: np.ndarray
    boxes: np.ndarray


def load_split(name: str) -> tuple[np.ndarray, np.ndarray]:
    """The 8x8 glyphs of one side of the split as f32 [n, 8, 8], 0.0 paper to 1.0 ink, and their digits as i64 [n]."""
    data = load_digits()
    glyphs, digits = (data.images / 16).astype(np.float32), data.target.astype(np.int64)
    train, held_out, train_digits, held_out_digits = train_test_split(
        glyphs, digits, test_size=HELD_OUT, stratify=digits, random_state=SPLIT_SEED
    )
    return (train, train_digits) if name == "train" else (held_out, held_out_digits)


def draw_glyph(glyph: np.ndarray, side: float, angle: float, slant: float, weight: tuple[float, float]) -> np.ndarray:
    """The mask of a glyph as f32 [h, w], cut to its ink and one pixel around it: `side` pixels for the 8x8 frame, turned and slanted."""
    padded = Image.fromarray(np.pad(glyph, 4))  # 16x16, with the frame in the middle
    canvas = int(np.ceil(side * 1.7))
    cos, sin, step = np.cos(angle), np.sin(angle), 8 / side
    # From a pixel of the canvas to one of the 16x16 glyph, both counted from the centre.
    a, b, d, e = cos * step, (sin + slant) * step, -sin * step, cos * step
    half = canvas / 2
    matrix = (a, b, 8 - (a + b) * half, d, e, 8 - (d + e) * half)
    drawn = np.asarray(padded.transform((canvas, canvas), Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC))
    low, high = weight
    mask = np.clip((drawn - low) / (high - low), 0, 1)
    rows, columns = np.flatnonzero((mask > INK).any(1)), np.flatnonzero((mask > INK).any(0))
    top, left = max(rows[0] - 1, 0), max(columns[0] - 1, 0)
    return mask[top : rows[-1] + 2, left : columns[-1] + 2]


def draw_paper(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Paper as f64 [height, width]: uneven light, stains, ruled lines, dirt and stray marks that are smaller than a digit."""
    tone = rng.uniform(190, 240)
    x, y = np.meshgrid(np.linspace(-1, 1, width), np.linspace(-1, 1, height))
    paper = tone + rng.uniform(-14, 14) * x + rng.uniform(-8, 8) * y
    coarse = Image.fromarray(rng.normal(0, rng.uniform(1, 5), (4, 16)).astype(np.float32))
    paper += np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC))

    stains = Image.new("L", (width, height))
    pen = ImageDraw.Draw(stains)
    for _ in range(rng.integers(0, 4)):
        cx, cy, rx, ry = rng.uniform(0, width), rng.uniform(0, height), rng.uniform(10, 60), rng.uniform(6, 25)
        pen.ellipse((cx - rx, cy - ry, cx + rx, cy + ry), fill=int(rng.uniform(8, 30)))
    paper -= np.asarray(stains.filter(ImageFilter.GaussianBlur(4)))

    marks = Image.new("L", (width, height))
    pen = ImageDraw.Draw(marks)
    if rng.random() < 0.5:  # ruled lines
        pitch, strength = rng.uniform(18, 40), int(rng.uniform(10, 40))
        for line in np.arange(rng.uniform(0, pitch), height, pitch):
            pen.line((0, line, width, line + rng.uniform(-2, 2)), fill=strength)
    for _ in range(rng.integers(5, 50)):  # dirt
        cx, cy, r = rng.uniform(0, width), rng.uniform(0, height), rng.uniform(0.3, 1.6)
        pen.ellipse((cx - r, cy - r, cx + r, cy + r), fill=int(rng.uniform(20, 140)))
    for _ in range(rng.integers(0, 6)):  # stray marks
        cx, cy, length, angle = rng.uniform(0, width), rng.uniform(0, height), rng.uniform(3, 11), rng.uniform(0, np.pi)
        dx, dy = length / 2 * np.cos(angle), length / 2 * np.sin(angle)
        pen.line((cx - dx, cy - dy, cx + dx, cy + dy), fill=int(rng.uniform(30, 130)), width=int(rng.integers(1, 3)))
    return paper - np.asarray(marks.filter(ImageFilter.GaussianBlur(0.5)))


def make_page(rng: np.random.Generator, glyphs: np.ndarray, digits: np.ndarray, count: int) -> Page:
    """A page with `count` digits roughly on one line. Digits of varied size and tilt, gaps that differ, and ink that may be faint."""
    width, height = int(rng.integers(500, 641)), int(rng.integers(76, 105))
    margin = 12
    chosen = rng.integers(0, len(glyphs), count)

    # Sizes and gaps are chosen in pixels, and made smaller together where the line would not fit.
    side = rng.uniform(24, min(52, height * 0.55))
    sides, gaps = side * rng.uniform(0.85, 1.15, count), side * rng.uniform(0.12, 0.6, count)
    gaps *= np.where(rng.random(count) < 0.1, 1.8, 1.0)  # here and there a wide one
    slant = rng.uniform(-0.15, 0.15)
    angles = np.radians(rng.uniform(-10, 10, count))
    weights = [(rng.uniform(0.2, 0.4), rng.uniform(0.75, 1.0)) for _ in range(count)]

    def draw(scale: float) -> list[np.ndarray]:
        return [draw_glyph(glyphs[i], s * scale, a, slant, w) for i, s, a, w in zip(chosen, sides, angles, weights)]

    masks, scale, room = draw(1.0), 1.0, width - 2 * margin
    needed = sum(m.shape[1] for m in masks) + gaps[1:].sum()
    if needed > room:
        scale = room / needed * 0.97  # masks are whole pixels wide: a little less than what would fit
        masks = draw(scale)
        gaps *= scale
        needed = min(sum(m.shape[1] for m in masks) + gaps[1:].sum(), room)

    paper = draw_paper(rng, width, height)
    contrast = rng.uniform(60, 170)
    slope, middle = rng.uniform(-0.03, 0.03), height / 2 + rng.uniform(-1, 1) * height * 0.15
    x, boxes = margin + rng.uniform(0, room - needed), []
    for mask, s, gap in zip(masks, sides * scale, gaps * (np.arange(count) > 0)):
        h, w = mask.shape
        x += gap
        cy = middle + slope * (x - width / 2) + rng.uniform(-0.1, 0.1) * s
        left, top = int(round(x)), int(round(np.clip(cy - h / 2, 3, height - h - 3)))
        left = min(left, width - w - 3)
        ink = min(contrast * rng.uniform(0.8, 1.2), 185)
        paper[top : top + h, left : left + w] -= mask * ink
        rows, columns = np.flatnonzero((mask > INK).any(1)), np.flatnonzero((mask > INK).any(0))
        y1, y2, x1, x2 = top + rows[0], top + rows[-1] + 1, left + columns[0], left + columns[-1] + 1
        half = max(y2 - y1, x2 - x1) * ROOM / 2
        boxes.append(((x1 + x2) / 2 - half, (y1 + y2) / 2 - half, (x1 + x2) / 2 + half, (y1 + y2) / 2 + half))
        x += w
    grain = rng.normal(0, rng.uniform(0, 0.9), paper.shape)
    gray = np.clip(np.rint((paper + grain) / LEVELS) * LEVELS, 0, 255).astype(np.uint8)
    return Page(gray, digits[chosen], np.clip(boxes, 0, (width, height, width, height)))


def pages(n: int, least: int, most: int, seed: int, glyphs: np.ndarray, digits: np.ndarray):
    """`n` pages with `least` to `most` digits. A page depends on the seed and its own number, not on the pages before it."""
    for number in range(n):
        rng = np.random.default_rng([seed, number])
        yield make_page(rng, glyphs, digits, int(rng.integers(least, most + 1)))


def main() -> int:
    parser = argparse.ArgumentParser(description="Make pages of handwritten digits.")
    parser.add_argument("--out", type=Path, required=True, help="folder for labels.csv and pages/")
    parser.add_argument("--pages", type=int, required=True, metavar="N")
    parser.add_argument("--digits", type=int, nargs=2, default=(3, 8), metavar=("MIN", "MAX"), help="digits on a page (default: 3 8)")
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    parser.add_argument("--split", choices=("held-out", "train"), default="held-out", help="whose digits (default: held-out)")
    asked = parser.parse_args()
    least, most = asked.digits
    if asked.pages < 1 or asked.seed < 0 or not 1 <= least <= most <= 24:
        parser.error("a page holds 1 to 24 digits, and neither the number of pages nor the seed is negative")

    folder = asked.out / "pages"
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("page-*.png"):
        stale.unlink()
    rows, n_bytes = [], 0
    for number, page in enumerate(pages(asked.pages, least, most, asked.seed, *load_split(asked.split)), start=1):
        name = f"page-{number:04}.png"
        Image.fromarray(page.gray).save(folder / name, optimize=True)
        n_bytes += (folder / name).stat().st_size
        rows.append((name, "".join(map(str, page.digits))))
    with open(asked.out / "labels.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["file", "number"])
        writer.writerows(rows)
    print(f"{len(rows)} pages, {sum(len(number) for _, number in rows)} digits, {n_bytes} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
