"""Draws the pictures of this example: `pictures/`, 40 gray PNG files of 144 x 96 pixels with up to 4 faces and up to 3 blank discs each, of 24, 36
or 48 pixels, and `truth.json`, where the faces are: left, top and side.

    python data.py [--pictures N] [--out DIR] [--seed N]

It needs Python 3.8 and nothing else.
"""

import argparse
import json
import random
import struct
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
WIDTH, HEIGHT, SIDES = 144, 96, (24, 36, 48)
PAPER, SKIN, INK = 90, 190, 50


def what(x, y):
    """At a pixel of a face of 24, as models/make_small.py: 0 outside, 1 skin, 2 an eye or the mouth."""
    far = lambda left, top: ((x - left) ** 2 + (y - top) ** 2) ** 0.5
    if far(11.5, 11.5) > 11:
        return 0
    return 2 if min(far(7.5, 9), far(15.5, 9)) <= 2 or (7 <= x <= 16 and 15 <= y <= 17) else 1


def drawn(chance):
    """The pixels of a picture, and the left, top and side of each face."""
    light = chance.uniform(0.8, 1.2)
    pixels = [[PAPER * light] * WIDTH for _ in range(HEIGHT)]
    taken, faces = [], []
    for is_face in [True] * chance.randint(0, 4) + [False] * chance.randint(0, 3):
        side = chance.choice(SIDES)
        left, top = chance.randint(0, WIDTH - side), chance.randint(0, HEIGHT - side)
        if any(-side < left - x < other and -side < top - y < other for x, y, other in taken):
            continue
        taken.append((left, top, side))
        if is_face:
            faces.append((left, top, side))
        for y in range(side):
            for x in range(side):
                seen = what(*((at + 0.5) * 24 / side - 0.5 for at in (x, y)))
                if seen:
                    pixels[top + y][left + x] = (INK if is_face and seen == 2 else SKIN) * light
    noisy = [[min(255, max(0, round(value + chance.gauss(0, 12)))) for value in row] for row in pixels]
    return noisy, sorted(faces)


def png(rows):
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 0, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + bytes(row) for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def main():
    parser = argparse.ArgumentParser(description="Draw the pictures of the faces example.")
    parser.add_argument("--pictures", type=int, default=40)
    parser.add_argument("--out", type=Path, default=HERE, help="where `pictures` and `truth.json` go (default: beside this script)")
    parser.add_argument("--seed", type=int, default=24)
    asked = parser.parse_args()
    chance, truth = random.Random(asked.seed), {}
    (asked.out / "pictures").mkdir(parents=True, exist_ok=True)
    for number in range(asked.pictures):
        rows, truth[f"{number:04}.png"] = drawn(chance)
        (asked.out / "pictures" / f"{number:04}.png").write_bytes(png(rows))
    (asked.out / "truth.json").write_text(json.dumps(truth))
    print(f"{asked.pictures} pictures with {sum(map(len, truth.values()))} faces in {asked.out}")


main()
