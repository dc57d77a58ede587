"""Decodes JPEG files on the GPU by NVIDIA's nvJPEG, by its C interface: an experiment for the loaders. Standard library only.

    gpu_jpeg.py FOLDER_OF_JPEG_FILES BATCH SECONDS [FOLDER_OF_LIBRARIES ..]

Prints one JSON object: pictures in a second, or why there are none.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path

RGB_INTERLEAVED = 5  # NVJPEG_OUTPUT_RGBI
COMPONENTS = 4  # NVJPEG_MAX_COMPONENT


class Image(ctypes.Structure):
    """`nvjpegImage_t`"""

    _fields_ = [("channel", ctypes.c_void_p * COMPONENTS), ("pitch", ctypes.c_size_t * COMPONENTS)]


def library(name: str, releases: tuple[int, ...], folders: list[Path]) -> ctypes.CDLL:
    """The first that can be loaded, of the folders, of NVIDIA's Python packages, or where the loader looks."""
    packages = [folder for entry in sys.path if entry for folder in sorted(Path(entry).glob("nvidia/*/lib"))]
    why = f"lib{name}.so is in none of NVIDIA's Python packages, and the loader knows none"
    for release in releases:
        file = f"lib{name}.so.{release}"
        for path in [*(folder / file for folder in [*folders, *packages] if (folder / file).exists()), file]:
            try:
                return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                why = str(error)
    raise OSError(why)


def must(code: int, what: str) -> None:
    if code != 0:
        raise OSError(f"{what} gives {code}")


def rate(folder: Path, batch: int, seconds: float, folders: list[Path]) -> float:
    cuda, jpeg = library("cudart", (13, 12), folders), library("nvjpeg", (13, 12), folders)
    contents = [path.read_bytes() for path in sorted(folder.glob("*.jp*g"))]
    contents = [contents[i % len(contents)] for i in range(batch)]
    handle, state = ctypes.c_void_p(), ctypes.c_void_p()
    must(jpeg.nvjpegCreateSimple(ctypes.byref(handle)), "nvjpegCreateSimple")
    must(jpeg.nvjpegJpegStateCreate(handle, ctypes.byref(state)), "nvjpegJpegStateCreate")
    must(jpeg.nvjpegDecodeBatchedInitialize(handle, state, batch, 1, RGB_INTERLEAVED), "nvjpegDecodeBatchedInitialize")
    images = (Image * batch)()
    data = (ctypes.c_char_p * batch)(*contents)
    lengths = (ctypes.c_size_t * batch)(*map(len, contents))
    for image, content in zip(images, contents):
        parts, sampling = ctypes.c_int(), ctypes.c_int()
        widths, heights = (ctypes.c_int * COMPONENTS)(), (ctypes.c_int * COMPONENTS)()
        told = jpeg.nvjpegGetImageInfo(handle, content, ctypes.c_size_t(len(content)), ctypes.byref(parts), ctypes.byref(sampling), widths, heights)
        must(told, "nvjpegGetImageInfo")
        pixels = ctypes.c_void_p()
        must(cuda.cudaMalloc(ctypes.byref(pixels), ctypes.c_size_t(3 * widths[0] * heights[0])), "cudaMalloc")
        image.channel[0], image.pitch[0] = pixels.value, 3 * widths[0]

    def decode() -> None:
        must(jpeg.nvjpegDecodeBatched(handle, state, data, lengths, images, None), "nvjpegDecodeBatched")
        must(cuda.cudaStreamSynchronize(None), "cudaStreamSynchronize")

    decode()
    n, began = 0, time.monotonic()
    while time.monotonic() - began < seconds:
        decode()
        n += batch
    return n / (time.monotonic() - began)


def main() -> int:
    folder, batch, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    try:
        print(json.dumps({"pictures_per_second": rate(folder, batch, seconds, [Path(folder) for folder in sys.argv[4:]])}))
    except (OSError, AttributeError) as error:
        print(json.dumps({"why": str(error)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
