"""Makes the golden cases: inputs, `cases.txt` and `expected.bin` (8 bit pixels after Pillow's resize, before normalisation).

Needs Pillow and numpy: `python3 -m venv venv && venv/bin/pip install pillow numpy && venv/bin/python make.py`.
A line of `cases.txt` is `input filter fit shorter color height width max_difference`; the rows of `expected.bin` follow in
the same order, `[height, width, channels]` each.
"""
import io
import pathlib

import numpy as np
from PIL import Image, ImageOps

HERE = pathlib.Path(__file__).parent
PAD = (200, 100, 50)
FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos3": Image.Resampling.LANCZOS,
}


def scene(width, height):
    """Shades, waves, soft edges and a little noise."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    u, v = x / width, y / height
    wave = 40 * np.sin(u * 23) * np.cos(v * 17)
    disc = 70 / (1 + np.exp((np.hypot(u - 0.6, v - 0.4) - 0.25) * 40))
    bars = 30 * np.tanh(8 * np.sin(u * 40 + v * 13))
    noise = np.random.default_rng(7).normal(0, 4, (height, width, 3))
    base = np.stack([60 + 120 * u + wave + disc, 50 + 130 * v - wave + bars, 180 - 100 * u + disc - bars / 2], -1)
    return Image.fromarray(np.clip(base + noise, 0, 255).astype(np.uint8), "RGB")


def save(name, image, **options):
    image.save(HERE / name, **options)


def make_inputs():
    small = scene(90, 67)
    save("scene.png", small)
    save("tall.png", scene(41, 83))
    wide = scene(150, 113)
    save("photo.jpg", wide, quality=90)
    save("photo-444.jpg", wide, quality=88, subsampling=0)
    save("photo-422.jpg", wide, quality=88, subsampling=1)
    save("progressive.jpg", wide, quality=85, progressive=True, optimize=True)
    save("gray.jpg", wide.convert("L"), quality=88)
    save("cmyk.jpg", wide.convert("CMYK"), quality=90)
    save("restart.jpg", wide, quality=85, restart_marker_blocks=3)
    exif = Image.Exif()
    exif[0x0112] = 6
    save("turned.jpg", wide, quality=85, exif=exif.tobytes())
    save("palette.png", small.quantize(64))
    save("lossy.webp", wide, quality=85)
    save("lossless.webp", small, lossless=True)
    save("colours.gif", small.quantize(128))
    save("scene.bmp", scene(40, 31))
    save("lzw.tiff", scene(48, 37), compression="tiff_lzw")
    save("bits.tiff", small.convert("1"))
    save("fax.tiff", small.convert("1"), compression="group4")
    save("cmyk.tiff", scene(40, 31).convert("CMYK"), compression="tiff_lzw")
    save("bits.png", small.convert("1"))
    rgba = small.copy()
    rgba.putalpha(Image.fromarray(np.tile(np.linspace(0, 255, 90).astype(np.uint8), (67, 1)), "L"))
    save("alpha.png", rgba)


def opened(name, color):
    image = ImageOps.exif_transpose(Image.open(HERE / name))
    if image.mode == "RGBA":
        ground = Image.new("RGB", image.size, PAD if color == "rgb" else (PAD[0],) * 3)
        ground.paste(image, mask=image.getchannel("A"))
        image = ground
    return image.convert("RGB").convert("RGB" if color == "rgb" else "L")


def prepared(image, kind, fit, shorter, height, width, color):
    size, kind = (width, height), FILTERS[kind]
    pad = PAD if color == "rgb" else PAD[0]
    if fit == "stretch":
        return image.resize(size, kind)
    if fit == "cover":
        return ImageOps.fit(image, size, kind)
    if fit == "contain":
        return ImageOps.pad(image, size, kind, color=pad)
    # torchvision.transforms: Resize(shorter) and CenterCrop((height, width)).
    w, h = image.size
    new = (shorter, int(shorter * h / w)) if w <= h else (int(shorter * w / h), shorter)
    image = image.resize(new, kind)
    left, top = round((new[0] - width) / 2.0), round((new[1] - height) / 2.0)
    return image.crop((left, top, left + width, top + height))


def main():
    make_inputs()
    cases = []
    for source in ("scene.png", "tall.png"):
        for kind in FILTERS:
            for fit in ("stretch", "cover", "contain", "shorter"):
                cases.append((source, kind, fit, 37, "rgb", 20, 25, 3))
    for kind in FILTERS:
        cases.append(("scene.png", kind, "shorter", 37, "gray", 20, 25, 3))
        cases.append(("tall.png", kind, "stretch", 0, "rgb", 40, 60, 3))
    others = sorted(p.name for p in HERE.iterdir() if p.suffix in {".jpg", ".png", ".webp", ".gif", ".bmp", ".tiff"})
    for source in others:
        if source not in ("scene.png", "tall.png"):
            for color in ("rgb", "gray"):
                cases.append((source, "bilinear", "shorter", 29, color, 24, 24, 3))
    expected = io.BytesIO()
    lines = []
    for source, kind, fit, shorter, color, height, width, limit in cases:
        image = prepared(opened(source, color), kind, fit, shorter, height, width, color)
        assert image.size == (width, height), (source, fit, image.size)
        expected.write(image.tobytes())
        lines.append(f"{source} {kind} {fit} {shorter} {color} {height} {width} {limit}\n")
    (HERE / "expected.bin").write_bytes(expected.getvalue())
    (HERE / "cases.txt").write_text("".join(lines))


if __name__ == "__main__":
    main()
