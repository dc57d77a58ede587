"""The two stages of this example between and behind the models: which places are worth a look, and which of them are faces."""

import numpy as np
import orchestra

STRIDE, SIDE, MARGIN, HEIGHT = 4, 24, 4, 96
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
    area = lambda box: max(box[2] - box[0], 0) * max(box[3] - box[1], 0)
    both = area(np.concatenate([np.maximum(one[:2], other[:2]), np.minimum(one[2:], other[2:])]))
    return both / (area(one) + area(other) - both)


def best(boxes, scores):
    """The boxes that are kept, as rows of a list."""
    return [{"box": boxes[at], "score": scores[at]} for at in suppressed(boxes, scores)]


@orchestra.stage(each=True, outputs={"places": BOXES})
def proposals(levels):
    """Places that look like a light disc, one for each disc, with a margin: `crop` cuts them out of the picture."""
    boxes, scores = [np.zeros((0, 4), np.float32)], [np.zeros(0, np.float32)]
    for level in levels:
        heat, step = level["heat"][0], HEIGHT / level["pixels.size"][0]
        down, right = np.nonzero(heat > WORTH_A_LOOK)
        corners = np.stack([right, down], axis=1) * STRIDE
        boxes.append(np.concatenate([corners - MARGIN, corners + SIDE + MARGIN], axis=1).astype(np.float32) * np.float32(step))
        scores.append(heat[down, right])
    yield from best(np.concatenate(boxes), np.concatenate(scores))


@orchestra.stage(each=True, outputs={"faces": BOXES})
def faces(parts):
    """Of all parts of a picture those that are a face, where the second model has found it."""
    boxes, scores = [np.zeros((0, 4), np.float32)], [np.zeros(0, np.float32)]
    for part in parts:
        if part["judge.likeness"][0] > IS_FACE:
            left, top, end, _ = part["parts.box"]
            # What the model saw is 32 pixels wide, and the face is 24 of them.
            step = (end - left) / (SIDE + 2 * MARGIN)
            down, right = np.divmod(part["judge.place"][0], 2 * MARGIN + 1)
            corner = np.array([left + right * step, top + down * step])
            boxes.append(np.concatenate([corner, corner + SIDE * step])[None].astype(np.float32))
            scores.append(part["judge.likeness"])
    return {"faces": best(np.concatenate(boxes), np.concatenate(scores))}
