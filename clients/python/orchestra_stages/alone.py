"""Compares rows that are called alone with their batch: what a row gives must not follow from others."""

from __future__ import annotations

import time
from typing import Any, Callable, List, Optional

import numpy as np

from .errors import DIFFERS_ALONE, BatchError

#: The share of the time of batches that comparisons may take, after the first.
_SHARE = 1 / 256
#: Seconds of comparisons that are always allowed; those of the first one, and of a later one.
_FREE, _FIRST, _LATER = 0.01, 0.05, 0.005

#: The outputs of one row, each `[1, ..]`.
CallRow = Callable[[int], List[np.ndarray]]


class AloneCheck:
    """Compares the first batch and, for a 256th of their time, later ones."""

    def __init__(self, names: List[str], is_gpu: bool, is_off: bool) -> None:
        self.names = names
        self.is_gpu = is_gpu
        #: Nothing can be told: a function of single rows, or one that gives something else at each call.
        self.is_off = is_off
        self.seconds_of_batches = 0.0
        self.seconds = 0.0
        self.n_compared = 0

    def is_due(self, n_rows: int, seconds: float) -> bool:
        """Whether to compare a batch that took so long."""
        self.seconds_of_batches += seconds
        return n_rows > 1 and not self.is_off and self.seconds <= max(_FREE, self.seconds_of_batches * _SHARE)

    def compare(self, batch: List[np.ndarray], n_rows: int, seconds: float, call_row: CallRow) -> None:
        """Raises `BatchError` where a row differs. `batch` are its outputs `[n_rows, ..]`; `seconds` its time."""
        began = time.perf_counter()
        limit = max(seconds, _LATER if self.n_compared else _FIRST)
        for n in range(n_rows):
            row = (n + self.n_compared) % n_rows
            why = self._row_differs(batch, row, call_row)
            if why:
                why = f"{why} (item {row} of a batch of {n_rows}): the items of a batch change each other"
                raise BatchError(why, DIFFERS_ALONE)
            if self.is_off or time.perf_counter() - began > limit:
                break
        self.seconds += time.perf_counter() - began
        self.n_compared += 1

    def _row_differs(self, batch: List[np.ndarray], row: int, call_row: CallRow) -> Optional[str]:
        try:
            alone = [np.array(output) for output in call_row(row)]
            found = [differs(mine[row], one[0], self.is_gpu) for mine, one in zip(batch, alone)]
            if not any(found):
                return None
            again = call_row(row)
            self.is_off = any(differs(one[0], other[0], self.is_gpu) for one, other in zip(alone, again))
            if self.is_off:  # It is random, or counts its calls.
                return None
            return next(f"its output `{name}` has {why}" for name, why in zip(self.names, found) if why)
        except BatchError as error:
            return f"{error} alone"
        except Exception:  # A row that fails alone tells nothing.
            return None


def differs(mine: Any, alone: Any, is_gpu: bool) -> Optional[str]:
    """How a row of a batch differs from what it gives alone, beyond what sums of another size round otherwise.

    Allowed is two ten-thousandths, or a hundredth in float16 and on a GPU, and one element in 1000 that differs more: a
    choice that was tipped over.
    """
    if isinstance(mine, str):
        return None if mine == alone else f"{mine[:80]!r} in its batch, and {alone[:80]!r} alone"
    if isinstance(mine, (list, tuple)) or mine.dtype == object:
        if len(mine) != len(alone):
            return f"{len(mine)} rows in its batch, and {len(alone)} alone"
        return next(filter(None, (differs(one, other, is_gpu) for one, other in zip(mine, alone))), None)
    if mine.shape != alone.shape:
        return f"the shape {[*mine.shape]} in its batch, and {[*alone.shape]} alone"
    if mine.dtype.kind == "f":
        relative, absolute = (1e-2, 1e-3) if is_gpu or mine.dtype == "float16" else (2e-4, 1e-5)
        near = np.isclose(mine.astype("float64"), alone.astype("float64"), relative, absolute, equal_nan=True)
    else:
        near = mine == alone
    where = np.argwhere(~near)
    if len(where) <= np.count_nonzero(alone) // 1000 and not (np.isnan(mine) != np.isnan(alone)).any():
        return None
    place = tuple(where[0].tolist())
    at = f" at {[*place]}" if place else ""
    return f"{mine[place]}{at} in its batch, and {alone[place]} alone"
