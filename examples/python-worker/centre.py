"""The stage between the two models: moves what is drawn to the middle of its picture, and says how sure the first model was of it.

Try it out with `python centre.py --check`.
"""

import numpy as np
import orchestra

SIDE = 32


@orchestra.stage(
    batch=64,
    inputs={"pixels": ("float32", [1, SIDE, SIDE]), "logits": ("float32", [10])},
    outputs={"pixels": ("float32", [1, SIDE, SIDE]), "margin": ("float32", [])},
)
class Centre:
    def __init__(self):
        # Once in each worker: the place for whatever is slow to make.
        self.places = np.arange(SIDE, dtype=np.float32)

    def __call__(self, pixels, logits):
        blank = np.flatnonzero(pixels.max(axis=(1, 2, 3)) == pixels.min(axis=(1, 2, 3)))
        if blank.size:
            raise orchestra.ItemError(blank[0], "nothing is drawn")  # Fails this item alone.
        return {"pixels": self.moved(pixels), "margin": margins(logits)}

    def moved(self, pixels):
        """Each picture, rolled so that the centre of its ink is in the middle."""
        ink = (pixels - pixels.min(axis=(2, 3), keepdims=True))[:, 0]
        by_row, by_column = ink.sum(axis=2), ink.sum(axis=1)
        weight = by_row.sum(axis=1)
        middle = (SIDE - 1) / 2
        down = np.rint(middle - by_row @ self.places / weight).astype(int)
        right = np.rint(middle - by_column @ self.places / weight).astype(int)
        moved = [np.roll(picture, shift, axis=(1, 2)) for picture, shift in zip(pixels, zip(down, right))]
        return np.stack(moved)


def margins(logits):
    """The probability of the best class less that of the second."""
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    best = np.sort(exponents / exponents.sum(axis=1, keepdims=True), axis=1)
    return best[:, -1] - best[:, -2]
