"""What `pool` is made of: the task as the workflow file states it, preparation of a picture, records.

It starts no process and no thread, and it measures nothing but the work time.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import onnxruntime
from PIL import Image

# Each process decodes on threads of its own choice: threads inside OpenCV would only fight with them.
cv2.setNumThreads(0)


@dataclass(frozen=True)
class Task:
    """The same model, pictures and preparation that orchestra reads from the workflow file."""

    model: str
    files: tuple[str, ...]
    size: tuple[int, int]  # height, width
    shorter: int | None  # None: stretch
    gray: bool
    fast: bool  # a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size where that is still large enough
    factor: np.ndarray  # f32 [channels]: value = pixel * factor + offset
    offset: np.ndarray
    top_k: int

    @property
    def channels(self) -> int:
        return 1 if self.gray else 3

    @property
    def row(self) -> tuple[int, int, int]:
        return (self.channels, *self.size)


def read_task(path: Path) -> Task:
    """Reads the few keys that the workflow files of scripts/make-bench-data.py use."""
    with open(path, "rb") as file:
        workflow = tomllib.load(file)
    (source,), (model,) = workflow["sources"].values(), workflow["models"].values()
    pixels, answer = workflow["stages"]["pixels"], workflow["stages"]["answer"]
    (folder,) = source["paths"]
    folder = path.parent / folder
    gray = pixels.get("color") == "gray"
    channels = 1 if gray else 3
    mean = np.full(channels, pixels.get("mean", 0), np.float32) if gray else np.float32(pixels["mean"])
    deviation = np.full(channels, pixels.get("std", 1), np.float32) if gray else np.float32(pixels["std"])
    return Task(
        model=str(path.parent / model["path"]),
        files=tuple(str(folder / name) for name in sorted(os.listdir(folder))),
        size=tuple(pixels["size"]),
        shorter=pixels["shorter"] if pixels.get("fit") == "shorter" else None,
        gray=gray,
        fast=pixels.get("fast", False),
        factor=1 / 255 / deviation,
        offset=-mean / deviation,
        top_k=answer["top_k"],
    )


# ## From a file to a row


def part(task: Task, width: int, height: int) -> tuple[float, float, float, float]:
    """The part of a picture that ends up in the row: left, top, right, bottom. Resize and centre crop are one step then."""
    if task.shorter is None:
        return (0, 0, width, height)
    # The steps of torchvision's Resize and CenterCrop, so that not even half a pixel differs.
    resized = (task.shorter, task.shorter * height // width) if width <= height else (task.shorter * width // height, task.shorter)
    left, top = (round((side - wanted) / 2) for side, wanted in zip(resized, task.size[::-1]))
    x, y = width / resized[0], height / resized[1]
    return (left * x, top * y, (left + task.size[1]) * x, (top + task.size[0]) * y)


def load_pillow(task: Task, path: str) -> np.ndarray:
    """u8 [height, width, channels]: Pillow, antialiased bilinear."""
    with Image.open(path) as picture:
        if task.fast and task.shorter is not None:
            picture.draft("RGB", (task.shorter, task.shorter))
        picture = picture.convert("L" if task.gray else "RGB")
    if task.shorter is None and picture.size == task.size[::-1]:
        return np.asarray(picture).reshape(*task.size, task.channels)
    small = picture.resize(task.size[::-1], Image.Resampling.BILINEAR, box=part(task, *picture.size))
    return np.asarray(small).reshape(*task.size, task.channels)


REDUCED = ((8, cv2.IMREAD_REDUCED_COLOR_8), (4, cv2.IMREAD_REDUCED_COLOR_4), (2, cv2.IMREAD_REDUCED_COLOR_2))


def load_opencv(task: Task, path: str, filter: int) -> np.ndarray:
    """u8 [height, width, channels]: OpenCV. Its linear filter is faster, and not antialiased."""
    data = np.fromfile(path, np.uint8)
    mode = cv2.IMREAD_GRAYSCALE if task.gray else cv2.IMREAD_COLOR
    if task.fast and task.shorter is not None:
        with Image.open(path) as header:  # OpenCV does not tell the size without decoding
            room = min(header.size) / task.shorter
        mode = next((flag for factor, flag in REDUCED if factor <= room), mode)
    picture = cv2.imdecode(data, mode)
    if task.shorter is not None or picture.shape[:2] != task.size:
        left, top, right, bottom = (round(edge) for edge in part(task, picture.shape[1], picture.shape[0]))
        picture = cv2.resize(picture[top:bottom, left:right], task.size[::-1], interpolation=filter)
    if not task.gray:
        cv2.cvtColor(picture, cv2.COLOR_BGR2RGB, dst=picture)
    return picture.reshape(*task.size, task.channels)


LOADERS = {
    "pillow": load_pillow,
    "opencv-area": lambda task, path: load_opencv(task, path, cv2.INTER_AREA),
    "opencv-linear": lambda task, path: load_opencv(task, path, cv2.INTER_LINEAR),
}


def normalise_into(task: Task, pixels: np.ndarray, row: np.ndarray) -> None:
    """Writes f32 [channels, height, width] into `row`. Planes first and in place: several times faster than the usual line of NumPy."""
    planes = cv2.split(pixels) if task.channels > 1 else (pixels[:, :, 0],)
    for plane, target, factor, offset in zip(planes, row, task.factor, task.offset):
        np.multiply(plane, factor, out=target)
        target += offset


# ## The model, and what comes out of it


def open_session(task: Task, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(task.model, options, providers=["CPUExecutionProvider"])


def run(session: onnxruntime.InferenceSession, rows: np.ndarray) -> np.ndarray:
    """Logits f32 [n, classes]."""
    return session.run(None, {session.get_inputs()[0].name: rows})[0]


def records(task: Task, first: int, files: tuple[str, ...] | list[str], logits: np.ndarray) -> str:
    """The JSON lines of a batch whose first picture is number `first`: softmax and the best classes, as orchestra writes them."""
    powers = np.exp(logits - logits.max(1, keepdims=True))
    scores = powers / powers.sum(1, keepdims=True)
    best = np.argpartition(scores, -task.top_k, axis=1)[:, -task.top_k :]
    lines = []
    for i, file in enumerate(files):
        classes = sorted(best[i].tolist(), key=lambda c: -scores[i, c])
        result = [{"label": str(c), "class": c, "score": float(scores[i, c])} for c in classes]
        lines.append(json.dumps({"item": os.path.basename(file), "index": first + i, "result": result}) + "\n")
    return "".join(lines)


# ## The command line


class Stopwatch:
    """Work time: from when imports, sessions and worker processes are ready, to when the last record is written."""

    def __init__(self) -> None:
        self.start = time.perf_counter()

    def finish(self, items: int) -> None:
        """Says so in one JSON line on standard output, which compare.py reads."""
        print(json.dumps({"items": items, "seconds": time.perf_counter() - self.start}), flush=True)


def arguments(about: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--workflow", type=Path, required=True, help="workflow file made by scripts/make-bench-data.py")
    parser.add_argument("--output", type=Path, required=True, help="file for the records")
    parser.add_argument("--batch", type=int, default=32)
    return parser
