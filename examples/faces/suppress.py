"""The two stages of this example between and behind the models: which places are worth a look, and which of them are faces.

Try one out with `python suppress.py --check proposals heat=float32:1,19,27`.
"""

import numpy as np
import orchestra

STRIDE, SIDE, MARGIN = 4, 24, 4
WORTH_A_LOOK, IS_FACE, OVERLAP = 0.1, 0.25, 0.3
BOXES = {"box": ("float32", [4]), "score": ("float32", [])}


def suppressed(boxes, scores):
    """Numbers of the boxes that overlap no better one by more than `OVERLAP`, the best first."""
    kept = []
    for at in np.argsort(-scores, kind="stable"):
        if all(overlap(boxes[at], boxes[other]) <= OVERLAP for other in kept):
            kept.append(at)
    return kept


def overlap(one, other):
    """The area that both boxes cover, as a share of the area that either does."""
    sides = np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])
    both = max(sides[0], 0) * max(sides[1], 0)
    return both / (2 * SIDE * SIDE - both)


def boxes_at(corners):
    return np.concatenate([corners, corners + SIDE], axis=1).astype(np.float32)


@orchestra.stage(each=True, inputs={"heat": ("float32", [1, 19, 27])}, outputs={"places": BOXES})
def proposals(heat):
    """Places that look like a light disc, one for each disc, with a margin: `crop` cuts them out of the picture."""
    down, right = np.nonzero(heat[0] > WORTH_A_LOOK)
    boxes, scores = boxes_at(np.stack([right, down], axis=1) * STRIDE), heat[0, down, right]
    margin = np.float32([-MARGIN, -MARGIN, MARGIN, MARGIN])
    for at in suppressed(boxes, scores):
        yield {"box": boxes[at] + margin, "score": scores[at]}


@orchestra.stage(each=True, outputs={"faces": BOXES})
def faces(parts):
    """Of all parts of a picture those that are a face, where the second model has found it."""
    parts = [part for part in parts if part["judge.likeness"][0] > IS_FACE]
    if not parts:
        return {"faces": []}
    scores = np.array([part["judge.likeness"][0] for part in parts])
    corners = [part["parts.box"][:2] + np.divmod(part["judge.place"][0], 2 * MARGIN + 1)[::-1] for part in parts]
    boxes = boxes_at(np.array(corners))
    return {"faces": [{"box": boxes[at], "score": scores[at]} for at in suppressed(boxes, scores)]}
