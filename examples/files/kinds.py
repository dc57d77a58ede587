"""The two stages around the model: what magika makes of a file's bytes, and what it says of the model's answer.

Try one out with `python kinds.py --check features content=bytes`.
"""

import json
from pathlib import Path

import numpy as np
import orchestra

MODELS = Path(__file__).resolve().parent / "models"
BLOCK, SIDE, PADDING = 4096, 1024, 256
FEWEST = 8


@orchestra.stage(batch=32, each=True, outputs={"bytes": ("int32", [2 * SIDE]), "short": "text"})
def features(content):
    """The first and the last bytes of a file without the blanks around them; `short`: what it is where too few are left for the model."""
    first, last = content[:BLOCK].lstrip()[:SIDE], content[-BLOCK:].rstrip()[-SIDE:]
    row = np.full(2 * SIDE, PADDING, np.int32)
    row[: len(first)] = np.frombuffer(first, np.uint8)
    row[2 * SIDE - len(last) :] = np.frombuffer(last, np.uint8)
    if len(content) < FEWEST or len(first) < FEWEST:
        return {"bytes": row, "short": few_bytes(content[:BLOCK])}
    return {"bytes": row, "short": ""}


def few_bytes(content):
    if not content:
        return "empty"
    try:
        content.decode()
        return "txt"
    except UnicodeDecodeError:
        return "unknown"


@orchestra.stage(batch=32, each=True, outputs={"label": "text", "score": ("float32", []), "is_text": ("bool", [])})
class Verdict:
    def __init__(self):
        # Once in each worker.
        config = json.loads((MODELS / "config.min.json").read_text())
        self.labels, self.renamed = config["target_labels_space"], config["overwrite_map"]
        self.thresholds, self.usual = config["thresholds"], config["medium_confidence_threshold"]
        self.kinds = json.loads((MODELS / "content_types_kb.min.json").read_text())

    def __call__(self, scores, short):
        label, score = short, 1.0
        if not short:
            best = self.labels[scores.argmax()]
            score = scores.max()
            label = self.renamed.get(best, best)
            if score < self.thresholds.get(best, self.usual):
                label = "txt" if self.kinds[label]["is_text"] else "unknown"
        return {"label": label, "score": score, "is_text": self.kinds[label]["is_text"]}
