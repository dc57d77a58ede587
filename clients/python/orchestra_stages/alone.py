"""Compares rows that are called alone with their batch: what a row gives must not follow from others."""

from __future__ import annotations

import time
from typing import Any, Callable, List, Optional, Union

import numpy as np

from .errors import DIFFERS_ALONE, BatchError

#: The share of the time of batches that comparisons may take, after the first.
_SHARE = 1 / 256
#: Seconds of comparisons that are always allowed; those of the first one, and of a later one.
_FREE, _FIRST, _LATER = 0.01, 0.05, 0.005

#: Before a function is found to mix its rows, single rows and the batch are called so often again, if that takes no
#: longer than so many seconds: what is random gives something else.
_REPEATS, _REPEATS_SECONDS = 8, 2.0

#: The outputs of rows, from this one on, so many: each `[n_rows, ..]`.
CallRows = Callable[[int, int], List[np.ndarray]]
#: Outputs, or why they are none.
Outcome = Union[List[np.ndarray], str]


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

    def compare(self, batch: List[np.ndarray], n_rows: int, seconds: float, call: CallRows) -> None:
        """Raises `BatchError` where a row differs. `batch` are its outputs `[n_rows, ..]`; `seconds` its time."""
        began = time.perf_counter()
        limit = max(seconds, _LATER if self.n_compared else _FIRST)
        for n in range(n_rows):
            row = (n + self.n_compared) % n_rows
            why = self._row_differs(batch, n_rows, row, call)
            if why:
                why = f"{why} (item {row} of a batch of {n_rows}): the items of a batch change each other"
                raise BatchError(why, DIFFERS_ALONE)
            if self.is_off or time.perf_counter() - began > limit:
                break
        self.seconds += time.perf_counter() - began
        self.n_compared += 1

    def _row_differs(self, batch: List[np.ndarray], n_rows: int, row: int, call: CallRows) -> Optional[str]:
        try:
            alone = _outcome(call, row, 1)
        except Exception:  # A row that fails alone tells nothing.
            return None
        why = self._difference([output[row : row + 1] for output in batch], alone)
        if why is None:
            return None
        began = time.perf_counter()
        for _ in range(_REPEATS):
            try:
                again, batch_again = _outcome(call, row, 1), _outcome(call, 0, n_rows)
            except Exception:
                self.is_off = True
                return None
            self.is_off = bool(self._difference(alone, again) or self._difference(batch, batch_again))
            if self.is_off:  # It is random, or counts its calls.
                return None
            if time.perf_counter() - began > _REPEATS_SECONDS:
                break
        return why

    def _difference(self, mine: Outcome, other: Outcome) -> Optional[str]:
        """How the rows of two outcomes differ, if they do."""
        if isinstance(mine, str) or isinstance(other, str):
            return None if isinstance(mine, str) and mine == other else f"{other} alone"
        for name, one, two in zip(self.names, mine, other):
            for row in range(len(one)):
                why = differs(one[row], two[row], self.is_gpu)
                if why:
                    return f"its output `{name}` has {why}"
        return None


def _outcome(call: CallRows, first: int, n_rows: int) -> Outcome:
    try:
        # The next call may write over what this one has returned.
        return [np.array(output) for output in call(first, n_rows)]
    except BatchError as error:
        return str(error)


def differs(mine: Any, alone: Any, is_gpu: bool) -> Optional[str]:
    """How a row of a batch differs from what it gives alone, beyond what sums of another size round otherwise.

    Allowed is two ten-thousandths, or a hundredth in float16 and on a GPU, and one element in 1000 that differs more: a
    choice that was tipped over.
    """
    if isinstance(mine, (str, bytes)):
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
