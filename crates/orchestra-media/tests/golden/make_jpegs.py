"""Makes the JPEG files of the rarer kinds that `tests/jpeg.rs` reads, out of those of `make.py`. Needs Pillow, numpy and libturbojpeg.so.0.

No program at hand writes some of them, so the bytes of the headers are changed: what a file means then is what its new
header says, and both decoders must agree on that.
"""
import ctypes
import pathlib

import make

HERE = pathlib.Path(__file__).parent
ADOBE = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00"


SUBSAMPLING = {"440": 4, "411": 5}


def compressed(image, subsampling):
    """With a subsampling that Pillow does not write."""
    turbo = ctypes.CDLL("libturbojpeg.so.0")
    turbo.tjInitCompress.restype = ctypes.c_void_p
    handle = ctypes.c_void_p(turbo.tjInitCompress())
    out, size = ctypes.c_void_p(), ctypes.c_ulong()
    width, height = image.size
    code = turbo.tjCompress2(
        handle, image.tobytes(), width, 0, height, 0, ctypes.byref(out), ctypes.byref(size), SUBSAMPLING[subsampling], 88, 0
    )
    assert code == 0
    return ctypes.string_at(out, size.value)


def segments(data):
    """Marker and bytes of each segment, and the scan with the rest last."""
    at = 2
    while data[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        yield data[at + 1], data[at:end]
        at = end
    yield 0xDA, data[at:]


def rebuilt(data, change, extra=b""):
    """The file with `extra` first and each segment replaced by `change(marker, segment)`."""
    return b"\xff\xd8" + extra + b"".join(change(marker, segment) for marker, segment in segments(data))


def without(*markers):
    return lambda marker, segment: b"" if marker in markers else segment


def renamed(names):
    """Other component names in the frame header and in the scan header, and no JFIF marker."""

    def change(marker, segment):
        out = bytearray(segment)
        if marker == 0xE0:
            return b""
        if marker == 0xC0:
            for at, name in enumerate(names):
                out[10 + 3 * at] = name
        if marker == 0xDA:
            for at, name in enumerate(names):
                out[5 + 2 * at] = name
        return bytes(out)

    return change


def extended(marker, segment):
    return segment[:1] + b"\xc1" + segment[2:] if marker == 0xC0 else segment


def main():
    wide = make.scene(150, 113)
    for subsampling in SUBSAMPLING:
        (HERE / f"photo-{subsampling}.jpg").write_bytes(compressed(wide, subsampling))
    make.save("optimised.jpg", wide, quality=88, optimize=True)
    photo = (HERE / "photo.jpg").read_bytes()
    (HERE / "extended.jpg").write_bytes(rebuilt(photo, extended))
    full = (HERE / "photo-444.jpg").read_bytes()
    (HERE / "rgb-adobe.jpg").write_bytes(rebuilt(full, without(0xE0), ADOBE + b"\x00"))
    (HERE / "rgb-names.jpg").write_bytes(rebuilt(full, renamed(b"RGB")))
    cmyk = (HERE / "cmyk.jpg").read_bytes()
    (HERE / "cmyk-plain.jpg").write_bytes(rebuilt(cmyk, without(0xEE)))
    (HERE / "ycck.jpg").write_bytes(rebuilt(cmyk, without(0xEE), ADOBE + b"\x02"))


if __name__ == "__main__":
    main()
