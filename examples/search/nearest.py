"""The nearest vectors of an index, by their product, which is the cosine of vectors of length 1."""

import json
from pathlib import Path

import numpy as np
import orchestra

INDEX = Path(__file__).resolve().parent / "index"
NEAREST = 5


@orchestra.stage(
    batch=64,
    inputs={"embedding": ("float32", [10])},
    outputs={"nearest": {"item": "text", "score": ("float32", [])}},
)
class Nearest:
    def __init__(self):
        # Once in each worker. The vectors stay in the file: all workers read the same pages of memory.
        self.vectors = np.load(INDEX / "vectors" / "all.npy", mmap_mode="r")
        self.names = json.loads((INDEX / "names.jsonl").read_text(encoding="utf-8"))["result"]

    def __call__(self, embedding):
        scores = embedding @ self.vectors.T
        some = np.argpartition(-scores, NEAREST, axis=1)[:, :NEAREST]
        return {"nearest": [self.found(row, places) for row, places in zip(scores, some)]}

    def found(self, scores, places):
        best = places[np.argsort(-scores[places], kind="stable")]
        return [{"item": self.names[at], "score": scores[at]} for at in best]
