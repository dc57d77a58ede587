"""Makes what the benchmarks run on: a model of MobileNet size, photographs, digits, and the workflow files that name them.

It downloads nothing: the photographs are cut from those inside the package scikit-image, the digits come with scikit-learn. The same call
gives the same files on one machine, and what is there already is not made again.

    scripts/make-bench-data.sh                      # into target/bench-data
    scripts/make-bench-data.sh --output DIR --digits 100000 --repeat 10
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path

import numpy as np
import skimage
from PIL import Image
from sklearn.datasets import load_digits

SCRIPTS = Path(__file__).resolve().parent
REPOSITORY = SCRIPTS.parent

SEED = 5
JPEG = {"quality": 87, "subsampling": "4:2:0", "progressive": False}
SMALL_COUNT, LARGE_COUNT = 1000, 300
LARGE_SIZE, TILES = (1920, 1080), 3  # width and height; tiles per side
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

SKIMAGE = Path(skimage.__file__).parent / "data"
# Photographs that come with the packages themselves; scikit-image would fetch its others.
NAMES = ("chelsea.png", "coffee.png", "hubble_deep_field.jpg", "motorcycle_left.png", "rocket.jpg", "brick.png", "camera.png")
PHOTOS = tuple(SKIMAGE / name for name in NAMES)


# ## Pictures


@cache
def photo(number: int) -> Image.Image:
    return Image.open(PHOTOS[number]).convert("RGB")


def crop(number: int, size: tuple[int, int], random: np.random.Generator) -> Image.Image:
    """A part of a photograph, mirrored half of the time, as a picture of `size` (width, height)."""
    source = photo(number)
    fits = min(source.width / size[0], source.height / size[1])
    scale = fits * random.uniform(0.7, 1.0)
    width, height = size[0] * scale, size[1] * scale
    left, top = random.uniform(0, source.width - width), random.uniform(0, source.height - height)
    picture = source.resize(size, Image.Resampling.LANCZOS, box=(left, top, left + width, top + height))
    return picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else picture


def small(seed: int, index: int) -> Image.Image:
    """One of about 500x375 pixels, one in five upright: the sizes that photographs on the web have."""
    random = np.random.default_rng((seed, index))
    width, height = 500, int(random.choice((333, 375, 375, 375, 400)))
    size = (height, width) if random.random() < 0.2 else (width, height)
    return crop(index % len(PHOTOS), size, random)


def large(seed: int, index: int) -> Image.Image:
    """One of 1920x1080: the photographs are not that large, so nine parts of one lie side by side."""
    random = np.random.default_rng((seed, index))
    picture, tile = Image.new("RGB", LARGE_SIZE), (LARGE_SIZE[0] // TILES, LARGE_SIZE[1] // TILES)
    for k in range(TILES * TILES):
        picture.paste(crop(index % len(PHOTOS), tile, random), (k % TILES * tile[0], k // TILES * tile[1]))
    return picture


def digit(seed: int, index: int) -> Image.Image:
    """A handwritten digit of 32x32 gray pixels, turned, scaled and moved a little, as in models/train_digits.py."""
    random = np.random.default_rng((seed, index))
    gray = np.rint(digits()[index % len(digits())] * (255 / 16)).astype(np.uint8)
    picture = Image.fromarray(gray).resize((32, 32), Image.Resampling.BICUBIC)
    angle, scale = math.radians(random.uniform(-10, 10)), random.uniform(0.9, 1.1)
    cos, sin = math.cos(angle) * scale, math.sin(angle) * scale
    x, y = random.uniform(-2, 2, 2) + 15.5
    matrix = (cos, -sin, x - cos * 15.5 + sin * 15.5, sin, cos, y - sin * 15.5 - cos * 15.5)
    return picture.transform((32, 32), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)


@cache
def digits() -> np.ndarray:
    return load_digits().images


def prepared(picture: Image.Image, filter=Image.Resampling.BILINEAR) -> np.ndarray:
    """What the model sees, f32 [3, 224, 224]: shorter side to 256, the centre of it, normalised."""
    shorter = min(picture.size)
    picture = picture.resize((256 * picture.width // shorter, 256 * picture.height // shorter), filter)
    left, top = round((picture.width - 224) / 2), round((picture.height - 224) / 2)
    pixels = np.asarray(picture.crop((left, top, left + 224, top + 224)), np.float32) / 255
    return ((pixels - np.float32(MEAN)) / np.float32(DEVIATION)).transpose(2, 0, 1)


# ## Files


def save(make, folder: Path, ending: str, index: int) -> int:
    """Writes one picture; gives its size in bytes."""
    path = folder / f"{index:06}{ending}"
    make(SEED, index).save(path, **(JPEG if ending == ".jpg" else {}))
    return path.stat().st_size


def write_images(folder: Path, make, ending: str, count: int) -> str:
    """Writes `count` pictures on all cores; gives a line about them."""
    folder.mkdir()
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        sizes = list(pool.map(partial(save, make, folder, ending), range(count), chunksize=50))
    return f"{count} images of {sum(sizes) / count / 1000:.1f} KB on average"


def link_again(source: Path, folder: Path, times: int) -> str:
    """Every file of `source` under `times` names: more items, no more disk."""
    folder.mkdir()
    for path in source.iterdir():
        for k in range(times):
            os.link(path, folder / f"{path.stem}-{k}{path.suffix}")
    return f"{times} names for each file of {source.name}"


def write_model(path: Path) -> str:
    import mobilenet  # sibling file; needs onnx, which the other parts do without

    n = len(PHOTOS)
    samples = np.stack([prepared(small(SEED + 1, index)) for index in range(10 * n)])
    # The measured pictures themselves, each made smaller in several ways: no answer should depend on the way.
    shown = [(small, index) for index in range(SMALL_COUNT)] + [(large, index) for index in range(LARGE_COUNT)]
    classes = np.array([index % n * (mobilenet.N_CLASSES // n) for _, index in shown])

    def views():
        for make, index in shown:
            picture = make(SEED, index)
            rough = picture.reduce(max(1, min(picture.size) // 256))  # as a decoder at reduced size does it
            whole = prepared(picture)
            yield np.stack([whole, np.roll(whole, (2, 2), (1, 2)), prepared(picture, Image.Resampling.NEAREST), prepared(rough)])

    path.write_bytes(mobilenet.make(samples, views(), classes))
    return f"{path.stat().st_size / 1e6:.1f} MB"


WORKFLOW = """\
# Made by scripts/make-bench-data.py.
version = 1
name = "{name}"

[sources.images]
kind = "images"
paths = ["{images}"]

[models.model]
path = "{model}"

[stages.pixels]
kind = "image"
from = "images"
{pixels}

[stages.run]
kind = "infer"
from = "pixels"
model = "model"
{batch}
[stages.answer]
kind = "classify"
from = "run"
top_k = 3

[sinks.results]
kind = "jsonl"
from = "answer"
path = "results.jsonl"

[devices]
use = ["cpu"]
"""
DIGITS_PIXELS = 'size = [32, 32]\ncolor = "gray"'
PHOTO_PIXELS = f'size = [224, 224]\nfit = "shorter"\nshorter = 256\nmean = {list(MEAN)}\nstd = {list(DEVIATION)}'


def workflows(n_digits: int, small_photos: str, large_photos: str) -> dict[str, str]:
    """File name to content."""
    table = {
        "digits": (f"digits-{n_digits}", "digits.onnx", DIGITS_PIXELS, "batch = { max = 64 }\n"),
        "mobilenet": (small_photos, "mobilenet.onnx", PHOTO_PIXELS, ""),
        "mobilenet-1080p": (large_photos, "mobilenet.onnx", f"{PHOTO_PIXELS}\nfast = true", ""),
        "mobilenet-1080p-exact": (large_photos, "mobilenet.onnx", PHOTO_PIXELS, ""),
    }
    return {
        f"{name}.toml": WORKFLOW.format(name=name, images=images, model=model, pixels=pixels, batch=batch)
        for name, (images, model, pixels, batch) in table.items()
    }


# ## What is there already


@cache
def recipe() -> str:
    """Changes when the files would come out differently: this code, or the list of packages."""
    parts = [SCRIPTS / name for name in ("make-bench-data.py", "mobilenet.py", "requirements.txt")]
    return hashlib.sha256(b"".join(path.read_bytes() for path in parts)).hexdigest()


def make_part(output: Path, name: str, write) -> None:
    """Makes `name` in `output` unless the same recipe has made it. It is written under another name first: never half of it stays."""
    target, made, part = output / name, output / f".{name}.made", output / f".{name}.part"
    if target.exists() and made.exists() and made.read_text() == recipe():
        print(f"  {name:22} is there")
        return
    for stale in (made, part, target):
        if stale.is_dir():
            shutil.rmtree(stale)
        else:
            stale.unlink(missing_ok=True)
    said = write(part)
    part.rename(target)
    made.write_text(recipe())
    print(f"  {name:22} {said}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the model, the images and the workflow files that are measured.")
    parser.add_argument("--output", type=Path, default=REPOSITORY / "target" / "bench-data", help="folder (default: target/bench-data)")
    parser.add_argument("--digits", type=int, default=20_000, metavar="N", help="how many digits (default: 20000)")
    parser.add_argument("--repeat", type=int, default=4, metavar="N", help="name each photograph N times, so that runs take seconds (default: 4)")
    asked = parser.parse_args()
    if min(asked.digits, asked.repeat) < 1:
        parser.error("--digits and --repeat must be 1 or more")
    output = asked.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    print(output, flush=True)

    make_part(output, "mobilenet.onnx", write_model)
    make_part(output, "digits.onnx", lambda part: copy(REPOSITORY / "models" / "digits.onnx", part))
    make_part(output, "small", lambda part: write_images(part, small, ".jpg", SMALL_COUNT))
    make_part(output, "large", lambda part: write_images(part, large, ".jpg", LARGE_COUNT))
    make_part(output, f"digits-{asked.digits}", lambda part: write_images(part, digit, ".png", asked.digits))
    photos = {name: name if asked.repeat == 1 else f"{name}-x{asked.repeat}" for name in ("small", "large")}
    for name, repeated in photos.items():
        if repeated != name:
            make_part(output, repeated, lambda part, name=name: link_again(output / name, part, asked.repeat))
    for name, content in workflows(asked.digits, photos["small"], photos["large"]).items():
        if not (output / name).exists() or (output / name).read_text() != content:
            (output / name).write_text(content)
            print(f"  {name:22} written")
    return 0


def copy(source: Path, target: Path) -> str:
    shutil.copyfile(source, target)
    return "a copy of models/digits.onnx"


if __name__ == "__main__":
    sys.exit(main())
