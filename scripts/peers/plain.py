"""The peer `plain`: one loop, the way it is first written. Pillow, NumPy, batches, ONNX Runtime with its defaults."""

from __future__ import annotations

import json

import numpy as np
from PIL import Image

import common


def load(task: common.Task, path: str) -> np.ndarray:
    """f32 [channels, height, width], in the words of a tutorial. A JPEG is decoded at reduced size where the task allows it."""
    picture = Image.open(path)
    if task.fast:
        picture.draft("RGB", (task.shorter, task.shorter))
    picture = picture.convert("L" if task.gray else "RGB")
    height, width = task.size
    if task.shorter is None:
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    else:
        shorter = min(picture.size)
        picture = picture.resize((task.shorter * picture.width // shorter, task.shorter * picture.height // shorter), Image.Resampling.BILINEAR)
        left, top = round((picture.width - width) / 2), round((picture.height - height) / 2)
        picture = picture.crop((left, top, left + width, top + height))
    pixels = np.asarray(picture, np.float32).reshape(height, width, task.channels)
    return (pixels * task.factor + task.offset).transpose(2, 0, 1)


def main() -> None:
    asked = common.arguments(__doc__).parse_args()
    task = common.read_task(asked.workflow)
    session = common.open_session(task, threads=None)
    stopwatch = common.Stopwatch()
    with open(asked.output, "w") as output:
        for first in range(0, len(task.files), asked.batch):
            files = task.files[first : first + asked.batch]
            rows = np.stack([load(task, path) for path in files])
            logits = session.run(None, {session.get_inputs()[0].name: rows})[0]
            scores = np.exp(logits - logits.max(1, keepdims=True))
            scores /= scores.sum(1, keepdims=True)
            for i, path in enumerate(files):
                best = np.argsort(-scores[i])[: task.top_k]
                result = [{"label": str(c), "class": int(c), "score": float(scores[i, c])} for c in best]
                output.write(json.dumps({"item": path.rsplit("/", 1)[-1], "index": first + i, "result": result}) + "\n")
    stopwatch.finish(len(task.files))


if __name__ == "__main__":
    main()
