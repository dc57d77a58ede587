"""Makes `libjpeg-turbo.txt`: the CRC-32 of the pixels that libjpeg-turbo decodes of each JPEG file here, upright, as rows of red, green and blue.

Needs Pillow and numpy: `python3 -m venv venv && venv/bin/pip install pillow==13.0.0 numpy && venv/bin/python make_turbo.py`. Pillow's wheels carry
libjpeg-turbo and leave its settings as they are. Gray is written three times. The library itself gives no RGB of CMYK: a level is C * K / 255, rounded, as
its program `djpeg` makes it (`cmyk_to_rgb` in its `cmyk.h`).
"""
import pathlib
import zlib

import numpy as np
from PIL import Image, ImageOps, features

HERE = pathlib.Path(__file__).parent


def pixels(path):
    image = Image.open(path)
    image.load()
    image = ImageOps.exif_transpose(image)
    if image.mode != "CMYK":
        return np.asarray(image.convert("RGB"))
    # Pillow inverts what the library gives.
    values = 255 - np.asarray(image).astype(np.uint16)
    return ((values[..., :3] * values[..., 3:] + 127) // 255).astype(np.uint8)


def main():
    assert features.check_feature("libjpeg_turbo"), "this Pillow has another libjpeg"
    lines = [f"# libjpeg-turbo {features.version('libjpeg_turbo')}, made by make_turbo.py\n"]
    for path in sorted(HERE.glob("*.jpg")):
        lines.append(f"{path.name} {zlib.crc32(pixels(path).tobytes()):08x}\n")
    (HERE / "libjpeg-turbo.txt").write_text("".join(lines))


if __name__ == "__main__":
    main()
