"""Makes `plain.png` and `interlaced.png`: the same pixels, in rows and in the seven passes of Adam7, which Pillow does not write. Needs Pillow and
numpy."""
import pathlib
import struct
import zlib

import make
import numpy as np

HERE = pathlib.Path(__file__).parent
# First column and row, and the steps between columns and rows, of each pass.
PASSES = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def chunk(name, payload):
    return struct.pack(">I", len(payload)) + name + payload + struct.pack(">I", zlib.crc32(name + payload))


def rows(pixels):
    return b"".join(b"\x00" + row.tobytes() for row in pixels) if pixels.shape[1] else b""


def main():
    image = make.scene(29, 23)
    image.save(HERE / "plain.png")
    pixels = np.asarray(image)
    data = b"".join(rows(pixels[y::down, x::across]) for x, y, across, down in PASSES)
    header = struct.pack(">IIBBBBB", image.width, image.height, 8, 2, 0, 0, 1)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data, 9)) + chunk(b"IEND", b"")
    (HERE / "interlaced.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunks)


if __name__ == "__main__":
    main()
