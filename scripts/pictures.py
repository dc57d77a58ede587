"""Pictures of many formats, colour types, depths, compressions and orientations, and a check of what orchestra made of them.

    pictures.py make FOLDER           writes the pictures, with what each must look like
    pictures.py check FOLDER ROWS     compares the rows, one .npy per picture, and the failures beside them

Each picture is WIDTH x HEIGHT when it is upright. What it must look like is what Pillow reads, or what was written where Pillow reads it wrongly or
not at all. A picture may fail by name instead, unless it is one of those that must be read.
"""
import io
import json
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import tifffile
from PIL import Image, ImageOps, PngImagePlugin, TiffImagePlugin

WIDTH, HEIGHT = 32, 24
Y, X = np.mgrid[0:HEIGHT, 0:WIDTH]
RGB = np.stack([X * 255 // (WIDTH - 1), Y * 255 // (HEIGHT - 1), (X + Y) * 3 % 256], -1).astype(np.uint8)
GRAY = (X * 5 + Y * 3).astype(np.uint8)
BITS = (X // 5 + Y // 4) % 2
ALPHA = np.array([0, 128, 255], np.uint8)[(X // 3) % 3]
# Whole numbers of EXIF: SHORT, LONG, SBYTE, SSHORT, SLONG. A BYTE is no number to Pillow, which does not turn such pictures.
TYPES = {"byte": (1, "B"), "sbyte": (6, "b"), "short": (3, "H"), "long": (4, "I"), "sshort": (8, "h"), "slong": (9, "i")}


class Pictures:
    def __init__(self, folder):
        self.folder, self.kinds = Path(folder), {}
        (self.folder / "expected").mkdir(parents=True)

    def add(self, name, looks=None, must=False, lossy=False):
        """Notes a file that was written: `looks` is what it must look like, where that is not what Pillow reads."""
        path = self.folder / name
        try:
            shown = pillow(path) if looks is None else looks
        except Exception as error:  # Pillow cannot read it, so nothing is known of it but that it may not pass for something else.
            shown = None
            assert not must, (name, error)
        if shown is not None:
            assert shown.shape == (HEIGHT, WIDTH, 3), (name, shown.shape)
            np.save(self.folder / "expected" / f"{name}.npy", shown)
        # What shines through is rounded twice.
        self.kinds[name] = {"must": must, "known": shown is not None, "lossy": lossy, "alpha": "alpha" in name}

    def pillow(self, name, image, must=True, lossy=False, looks=None, **options):
        """A file that Pillow writes."""
        try:
            image.save(self.folder / name, **options)
        except Exception:  # Not all modes go with all compressions.
            (self.folder / name).unlink(missing_ok=True)
            return
        self.add(name, looks, must, lossy)

    def bytes(self, name, data, **note):
        (self.folder / name).write_bytes(data)
        self.add(name, **note)

    def refused(self, name, data):
        """A file of which something is not read, or missing."""
        (self.folder / name).write_bytes(data)
        self.kinds[name] = {"must": False, "known": False, "lossy": False, "alpha": False}

    def tiff(self, name, data, looks=None, must=False, lossy=False, **options):
        """A file that tifffile writes."""
        tifffile.imwrite(self.folder / name, data, **options)
        self.add(name, looks, must, lossy)


def pillow(path):
    with Image.open(path) as image:
        return on_black(ImageOps.exif_transpose(image))


def on_black(image):
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        black = Image.new("RGBA", image.size, (0, 0, 0, 255))
        return np.asarray(Image.alpha_composite(black, image).convert("RGB"))
    return np.asarray(image.convert("RGB"))


def grays(gray):
    return np.repeat(np.asarray(gray, np.uint8)[..., None], 3, -1)


def shining(rgb):
    return np.rint(rgb.astype(float) * ALPHA[..., None] / 255).astype(np.uint8)


def packed(samples, bits, order="big"):
    """Lines of samples of a few bits."""
    lines = samples.reshape(HEIGHT, -1)
    each = (lines[..., None] >> np.arange(bits)[::-1] & 1).reshape(HEIGHT, -1).astype(np.uint8)
    return np.packbits(each, axis=1, bitorder=order).tobytes()


# PNG


def png(depth, color, lines, *chunks):
    chunk = lambda name, data: struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    step = len(lines) // HEIGHT
    rows = b"".join(b"\0" + lines[at * step : (at + 1) * step] for at in range(HEIGHT))
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", WIDTH, HEIGHT, depth, color, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(chunk(*c) for c in chunks) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def make_png(p):
    for bits in (1, 2, 4):
        levels = GRAY >> (8 - bits)
        p.bytes(f"png-gray-{bits}.png", png(bits, 0, packed(levels, bits)), must=True)
        table = RGB.reshape(-1, 3)[: 1 << bits].tobytes()
        p.bytes(f"png-palette-{bits}.png", png(bits, 3, packed(levels, bits), (b"PLTE", table)), must=True)
        p.bytes(f"png-palette-alpha-{bits}.png", png(bits, 3, packed(levels, bits), (b"PLTE", table), (b"tRNS", b"\0")), must=True)
    p.bytes("png-gray-8.png", png(8, 0, GRAY.tobytes()), must=True)
    wide = lambda a: (a.astype(">u2") * 257).astype(">u2")
    p.bytes("png-gray-16.png", png(16, 0, wide(GRAY).tobytes()), looks=grays(GRAY), must=True)
    p.bytes("png-rgb-16.png", png(16, 2, wide(RGB).tobytes()), looks=RGB, must=True)
    p.bytes("png-gray-alpha-16.png", png(16, 4, wide(np.dstack([GRAY, ALPHA])).tobytes()), looks=shining(grays(GRAY)), must=True)
    p.bytes("png-rgb-alpha-16.png", png(16, 6, wide(np.dstack([RGB, ALPHA])).tobytes()), looks=shining(RGB), must=True)
    key = struct.pack(">H", int(GRAY[5, 5]))
    p.bytes("png-gray-key-alpha.png", png(8, 0, GRAY.tobytes(), (b"tRNS", key)), looks=grays(np.where(GRAY == GRAY[5, 5], 0, GRAY)), must=True)
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA"):
        p.pillow(f"png-{mode}-alpha.png" if mode.endswith("A") else f"png-{mode}.png", in_mode(mode))


def in_mode(mode):
    if mode == "RGBA":
        return Image.fromarray(np.dstack([RGB, ALPHA]))
    if mode == "LA":
        return Image.fromarray(np.dstack([GRAY, ALPHA]))
    if mode == "1":
        return Image.fromarray((BITS * 255).astype(np.uint8)).convert("1")
    if mode == "L":
        return Image.fromarray(GRAY)
    return Image.fromarray(RGB).convert(mode)


# Orientations


def exif(kind, code, turn, order):
    value = struct.pack(order + code, turn).ljust(4, b"\0")
    start = b"II*\0" if order == "<" else b"MM\0*"
    return start + struct.pack(order + "IHHHI", 8, 1, 274, kind, 1) + value + bytes(4)


def stored(turn):
    """How the picture lies in a file that says to turn it so."""
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}
    image = Image.fromarray(RGB)
    return image if turn == 1 else image.transpose(Image.Transpose(undo[turn]))


def make_turned(p):
    turns = [(turn, "short", "<") for turn in range(1, 9)]
    # What is turned is as wide as what is not, for the one that Pillow does not turn.
    turns += [(3 if kind == "byte" else 6, kind, order) for kind in TYPES for order in "<>" if (kind, order) != ("short", "<")]
    for turn, kind, order in turns:
        name = f"turned-{turn}-{kind}-{'little' if order == '<' else 'big'}"
        block = b"Exif\0\0" + exif(*TYPES[kind], turn, order)
        image = stored(turn)
        for ending, options in (("png", {}), ("webp", {"lossless": True}), ("jpg", {"quality": 95, "subsampling": 0})):
            image.save(p.folder / f"{name}.{ending}", exif=block, **options)
            lossy = ending == "jpg"
            looks = None if lossy or kind == "byte" else RGB
            p.add(f"{name}.{ending}", looks, must=True, lossy=lossy)
        height, width = image.size[1], image.size[0]
        if (kind, order) == ("short", "<"):
            make_turned_otherwise(p, image, turn, block)
        tags = rgb_tags(width, height) + [(274, TYPES[kind][0], [turn])]
        looks = None if kind == "byte" else RGB
        p.bytes(f"{name}.tif", raw_tiff(np.asarray(image).tobytes(), tags, order), looks=looks, must=True)


def make_turned_otherwise(p, image, turn, block):
    """By XMP, and by EXIF as ImageMagick writes it into PNG."""
    xmp = f'<x:xmpmeta><rdf:Description tiff:Orientation="{turn}"/></x:xmpmeta>'.encode()
    image.save(p.folder / f"turned-{turn}-xmp.jpg", xmp=xmp, quality=95, subsampling=0)
    p.add(f"turned-{turn}-xmp.jpg", must=True, lossy=True)
    image.save(p.folder / f"turned-{turn}-xmp.webp", xmp=xmp, lossless=True)
    image.save(p.folder / f"turned-{turn}-xmp.tif", tiffinfo={700: xmp})
    text = PngImagePlugin.PngInfo()
    text.add_itxt("XML:com.adobe.xmp", xmp.decode(), zip=turn % 2 == 0)
    image.save(p.folder / f"turned-{turn}-xmp.png", pnginfo=text)
    text = PngImagePlugin.PngInfo()
    text.add_text("Raw profile type exif", f"\nexif\n{len(block):8}\n{block.hex()}\n", zip=turn % 2 == 0)
    image.save(p.folder / f"turned-{turn}-profile.png", pnginfo=text)
    for name in ("xmp.webp", "xmp.tif", "xmp.png", "profile.png"):
        p.add(f"turned-{turn}-{name}", RGB, must=True)


# JPEG, WebP, BMP, GIF


def make_others(p):
    for name, options in {
        "444": {"subsampling": 0},
        "422": {"subsampling": 1},
        "420": {"subsampling": 2},
        "progressive": {"progressive": True},
        "optimised": {"optimize": True},
        "coarse": {"quality": 30},
        "restarts": {"restart_marker_rows": 1},
    }.items():
        p.pillow(f"jpeg-{name}.jpg", in_mode("RGB"), lossy=True, **{"quality": 90, **options})
    p.pillow("jpeg-gray.jpg", in_mode("L"), lossy=True)
    p.pillow("jpeg-cmyk.jpg", in_mode("CMYK"), lossy=True)
    for mode in ("RGB", "RGBA"):
        name = mode if mode == "RGB" else "RGB-alpha"
        p.pillow(f"webp-{name}.webp", in_mode(mode), lossless=True, exact=True)
        p.pillow(f"webp-lossy-{name}.webp", in_mode(mode), lossy=True, quality=90)
    for mode in ("1", "L", "P", "RGB"):
        p.pillow(f"bmp-{mode}.bmp", in_mode(mode))
        p.pillow(f"gif-{mode}.gif", in_mode(mode))
    p.pillow("bmp-RGB-alpha.bmp", in_mode("RGBA"))
    # Pillow cuts fractions off.
    fives = RGB >> np.array([3, 2, 3], np.uint8)
    looks = np.rint(fives * 255.0 / np.array([31, 63, 31])).astype(np.uint8)
    p.bytes("bmp-565.bmp", bmp_565(), looks=looks, must=True)
    clear = in_mode("P")
    p.pillow("gif-alpha.gif", clear, transparency=int(np.asarray(clear)[3, 3]))
    p.pillow("gif-interlaced.gif", in_mode("P"), interlace=1)
    frames = [Image.fromarray(np.roll(RGB, at, 1)) for at in (0, 5, 9)]
    for ending, options in (("gif", {}), ("webp", {"lossless": True}), ("png", {})):
        p.pillow(f"animation.{ending}", frames[0], save_all=True, append_images=frames[1:], **options)
    p.pillow("pages.tif", frames[0], save_all=True, append_images=frames[1:])
    p.bytes("webp-blended-frame.webp", blended_frame(), looks=RGB, must=True)
    progressive = jpeg(progressive=True, quality=95)
    scans = [at for at in range(len(progressive)) if progressive[at : at + 2] == b"\xff\xda"]
    p.refused("jpeg-3-scans.jpg", progressive[: scans[3]] + b"\xff\xd9")
    p.refused("jpeg-holes.jpg", progressive[: len(progressive) // 2].ljust(len(progressive) - 2, b"\0") + b"\xff\xd9")


def jpeg(**options):
    file = io.BytesIO()
    Image.fromarray(RGB).save(file, "JPEG", **options)
    return file.getvalue()


def blended_frame():
    """An animation of one frame, lossless and opaque, that is to be blended into nothing."""
    file = io.BytesIO()
    Image.fromarray(RGB).save(file, "WEBP", lossless=True)
    chunk = lambda name, data: name + struct.pack("<I", len(data)) + data + bytes(len(data) % 2)
    size = struct.pack("<I", WIDTH - 1)[:3] + struct.pack("<I", HEIGHT - 1)[:3]
    frame = chunk(b"ANMF", bytes(6) + size + bytes([100, 0, 0, 0]) + file.getvalue()[12:])
    body = b"WEBP" + chunk(b"VP8X", b"\2\0\0\0" + size) + chunk(b"ANIM", bytes(6)) + frame
    return b"RIFF" + struct.pack("<I", len(body)) + body


def bmp_565():
    lines = (RGB[::-1].astype(np.uint16) >> [3, 2, 3] << [11, 5, 0]).sum(-1).astype("<u2").tobytes()
    masks = struct.pack("<III", 0xF800, 0x7E0, 0x1F)
    head = struct.pack("<IiiHHIIiiII", 40, WIDTH, HEIGHT, 1, 16, 3, len(lines), 0, 0, 0, 0)
    at = 14 + len(head) + len(masks)
    return b"BM" + struct.pack("<IHHI", at + len(lines), 0, 0, at) + head + masks + lines


# TIFF


def raw_tiff(data, tags, order="<", places=(8,), lengths=None):
    """A TIFF whose pixels, in one strip unless it is said, begin at byte 8. `tags`: number, type, values."""
    codes = {1: "B", 3: "H", 4: "I", 6: "b", 8: "h", 9: "i"}
    tags = sorted(tags + [(273, 4, places), (279, 4, lengths or [len(data)])])
    at = 8 + len(data)
    behind = at + 2 + 12 * len(tags) + 4
    entries, values = b"", b""
    for tag, kind, numbers in tags:
        value = struct.pack(f"{order}{len(numbers)}{codes[kind]}", *numbers)
        entries += struct.pack(order + "HHI", tag, kind, len(numbers))
        if len(value) <= 4:
            entries += value.ljust(4, b"\0")
        else:
            entries += struct.pack(order + "I", behind + len(values))
            values += value
    start = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", at)
    return start + data + struct.pack(order + "H", len(tags)) + entries + bytes(4) + values


def tags_of(width, height, bits, photometric, samples=1, **more):
    tags = [(256, 4, [width]), (257, 4, [height]), (258, 3, [bits] * samples), (259, 3, [more.pop("compression", 1)])]
    tags += [(262, 3, [photometric]), (277, 3, [samples]), (278, 4, [height])]
    return tags + [more.pop(name) for name in list(more)]


def rgb_tags(width, height):
    return tags_of(width, height, 8, 2, 3)


def make_raw_tiff(p):
    here = (WIDTH, HEIGHT)
    for bits in (1, 2, 4, 8):
        levels = GRAY >> (8 - bits)
        looks = grays(levels.astype(int) * 255 // ((1 << bits) - 1))
        table = np.resize(RGB.reshape(-1, 3), (1 << bits, 3))
        for order in (1, 2):
            fill = {"fill": (266, 3, [order])}
            data = packed(levels, bits)
            if order == 2:
                data = bytes(int(f"{byte:08b}"[::-1], 2) for byte in data)
            name = f"tiff-{bits}-order{order}"
            p.bytes(f"{name}-black0.tif", raw_tiff(data, tags_of(*here, bits, 1, **fill)), looks=looks, must=True)
            p.bytes(f"{name}-white0.tif", raw_tiff(data, tags_of(*here, bits, 0, **fill)), looks=255 - looks, must=True)
            colours = (320, 3, (table.T.astype(int) * 257).ravel().tolist())
            p.bytes(f"{name}-palette.tif", raw_tiff(data, tags_of(*here, bits, 3, map=colours, **fill)), looks=table[levels], must=True)
            for compression, pack in ((8, zlib.compress), (32773, packbits)):
                straight = packed(levels, bits)
                data_2 = pack(straight)
                if order == 2:
                    data_2 = bytes(int(f"{byte:08b}"[::-1], 2) for byte in data_2)
                tags = tags_of(*here, bits, 1, compression=compression, **fill)
                p.bytes(f"{name}-packed{compression}.tif", raw_tiff(data_2, tags), looks=looks, must=True)
    narrow = (320, 3, np.resize(RGB.reshape(-1, 3), (256, 3)).T.ravel().tolist())
    p.bytes("tiff-palette-of-8-bits.tif", raw_tiff(GRAY.tobytes(), tags_of(*here, 8, 3, map=narrow)), looks=np.resize(RGB.reshape(-1, 3), (256, 3))[GRAY], must=True)
    levels = RGB >> 4
    p.bytes("tiff-rgb-4.tif", raw_tiff(packed(levels, 4), tags_of(*here, 4, 2, 3)), looks=levels * 17, must=True)
    cmyk = np.asarray(in_mode("CMYK"))
    p.bytes("tiff-cmyk.tif", raw_tiff(cmyk.tobytes(), tags_of(*here, 8, 5, 4)), must=True)
    p.bytes("tiff-predictor.tif", raw_tiff(GRAY.tobytes(), tags_of(*here, 8, 1, predictor=(317, 3, [2]))), looks=grays(GRAY), must=True)
    second = tags_of(*here, 8, 2, 5, extra=(338, 3, [0, 2]))
    p.refused("tiff-second-alpha.tif", raw_tiff(np.dstack([RGB, GRAY, ALPHA]).tobytes(), second))
    strips = [tag for tag in tags_of(*here, 8, 1) if tag[0] != 278] + [(278, 4, [HEIGHT // 2])]
    p.refused("tiff-sparse.tif", raw_tiff(GRAY.tobytes(), strips, places=[8, 0], lengths=[WIDTH * HEIGHT // 2, 0]))
    for name, photometric in (("lab", 8), ("mask", 4), ("ycbcr", 6), ("logluv", 32845), ("cfa", 32803)):
        samples = 1 if name in ("mask", "cfa") else 3
        p.bytes(f"tiff-{name}.tif", raw_tiff(RGB[..., :samples].tobytes(), tags_of(*here, 8, photometric, samples)))


def packbits(data):
    return b"".join(bytes([len(part) - 1]) + part for part in (data[at : at + 100] for at in range(0, len(data), 100)))


def make_tiff(p):
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "YCbCr", "LAB", "F", "I"):
        image = {"I;16": lambda: Image.fromarray(GRAY.astype(np.uint16) * 257), "F": lambda: in_mode("L").convert("F")}.get(mode, lambda: in_mode(mode))()
        for compression in ("raw", "packbits", "tiff_lzw", "tiff_adobe_deflate", "jpeg", "group3", "group4", "tiff_ccitt", "zstd", "lzma"):
            if compression in ("group3", "group4", "tiff_ccitt") and mode != "1":
                continue
            name = mode.replace("I;16", "u16").replace("A", "-alpha") if mode not in ("LAB", "CMYK") else mode
            # Pillow cuts 16 bits off, and makes no picture of these.
            looks = grays(GRAY) if mode == "I;16" else None
            must = mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16") and compression in ("raw", "packbits", "tiff_lzw", "tiff_adobe_deflate", "group4")
            must |= compression == "jpeg" and mode in ("L", "RGB", "YCbCr")
            lossy = compression == "jpeg"
            p.pillow(f"tiff-{name}-{compression}.tif", image, must, lossy, looks, compression=compression)
    for order in (1, 2):
        fill = TiffImagePlugin.ImageFileDirectory_v2()
        fill[266] = order
        p.pillow(f"tiff-group4-order{order}.tif", in_mode("1"), compression="group4", tiffinfo=fill)


def make_tifffile(p):
    wide = lambda a: a.astype(np.uint16) * 257
    layouts = {
        "strips": {"rowsperstrip": 5},
        "tiles": {"tile": (16, 16)},
        "deflated": {"compression": "zlib", "predictor": True, "rowsperstrip": 7},
        "big": {"bigtiff": True, "byteorder": ">"},
    }
    for name, layout in layouts.items():
        for depth, change in (("u8", lambda a: a), ("u16", wide)):
            p.tiff(f"tf-gray-{depth}-{name}.tif", change(GRAY), grays(GRAY), True, photometric="minisblack", **layout)
            p.tiff(f"tf-rgb-{depth}-{name}.tif", change(RGB), RGB, True, photometric="rgb", **layout)
            planes = np.moveaxis(change(RGB), -1, 0).copy()
            p.tiff(f"tf-planes-{depth}-{name}.tif", planes, RGB, True, photometric="rgb", planarconfig="separate", **layout)
            straight = change(np.dstack([RGB, ALPHA]))
            p.tiff(f"tf-straight-alpha-{depth}-{name}.tif", straight, shining(RGB), True, photometric="rgb", extrasamples=["unassalpha"], **layout)
            multiplied = change(np.dstack([shining(RGB), ALPHA]))
            p.tiff(f"tf-multiplied-alpha-{depth}-{name}.tif", multiplied, shining(RGB), True, photometric="rgb", extrasamples=["assocalpha"], **layout)
        pair = np.dstack([GRAY, ALPHA])
        p.tiff(f"tf-gray-alpha-{name}.tif", pair, shining(grays(GRAY)), True, photometric="minisblack", extrasamples=["unassalpha"], **layout)
        unit = (RGB / np.float32(255)).astype("f4")
        layout = {key: value for key, value in layout.items() if key != "predictor"}
        p.tiff(f"tf-rgb-float-{name}.tif", unit, RGB, True, photometric="rgb", **layout)
    p.tiff("tf-rgb-and-infrared.tif", np.dstack([RGB, GRAY]), RGB, True, photometric="rgb", extrasamples=["unspecified"])
    for dtype in ("u4", "i1", "i2", "i4", "f2", "f4", "f8"):
        for name, data in (("gray", GRAY), ("rgb", RGB)):
            # None of these says how bright its numbers are.
            photometric = "minisblack" if name == "gray" else "rgb"
            tifffile.imwrite(p.folder / f"tf-{name}-{dtype}.tif", data.astype(dtype), photometric=photometric)
            p.kinds[f"tf-{name}-{dtype}.tif"] = {"must": False, "known": False, "lossy": False, "alpha": False}
    make_stacks(p)


def make_stacks(p):
    planes = np.stack([GRAY] * 3)
    for name, options in (("imagej", {"imagej": True, "truncate": True}), ("shaped", {"truncate": True}), ("volume", {"volumetric": True, "tile": (16, 16, 16)})):
        file = io.BytesIO()
        tifffile.imwrite(file, planes, photometric="minisblack", **options)
        p.refused(f"tf-stack-{name}.tif", file.getvalue())
    with tifffile.TiffWriter(p.folder / "tf-inner.tif") as writer:
        writer.write(GRAY[::2, ::2].copy(), subfiletype=1, subifds=1, photometric="minisblack", metadata=None)
        writer.write(GRAY, subfiletype=0, photometric="minisblack", metadata=None)
    p.add("tf-inner.tif", grays(GRAY), must=True)


def make(folder):
    p = Pictures(folder)
    for part in (make_png, make_turned, make_others, make_raw_tiff, make_tiff, make_tifffile):
        part(p)
    (p.folder / "kinds.json").write_text(json.dumps(p.kinds))
    print(f"{len(p.kinds)} pictures, {sum(kind['must'] for kind in p.kinds.values())} must be read")


# What was made of them


def check(folder, out):
    folder, out = Path(folder), Path(out)
    failures = [json.loads(line) for line in (out / "failures.jsonl").read_text().splitlines()]
    errors = {failure["item"]: failure["error"] for failure in failures}
    wrong = []
    for name, kind in json.loads((folder / "kinds.json").read_text()).items():
        if name in errors:
            wrong += [f"{name}: {why}" for why in wrong_failure(errors[name], kind)]
            continue
        found = np.load(out / "rows" / f"{name}.npy").astype(int)
        if not kind["known"]:
            wrong.append(f"{name} is read, and nobody knows how it looks")
            continue
        off = np.abs(found - np.load(folder / "expected" / f"{name}.npy"))
        most, mean = (2, 0.5) if kind["lossy"] else (1 if kind["alpha"] else 0, 0.5)
        if off.max() > most or off.mean() > mean:
            wrong.append(f"{name} is off by {off.max()}, {off.mean():.2f} on average; {(off.max(-1) > most).mean():.0%} of its pixels")
    print(f"{len(errors)} failed by name")
    for line in wrong:
        print(line)
    return not wrong


def wrong_failure(error, kind):
    if kind["must"]:
        yield f"must be read, and fails: {error}"
    for word in ("assert", "panic", "unwrap", "overflow", "index out of", "unreachable"):
        if word in error:
            yield f"is told in words of a library: {error}"


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2])
    elif not check(*sys.argv[2:4]):
        sys.exit(1)
