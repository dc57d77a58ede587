"""Runs a stage on its own outputs: the loop of `rounds`, `feed` and `until` of the workflow file."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from .calls import StageCall
from .declare import ItemError


class LoopCall:
    """Calls a stage round after round, each time with the rows that have not ended.

    `loop` is that of `Load`: `{"rounds", "feed": [[input, output]], "until": [output, number, or equal] or None}`.
    """

    def __init__(self, call: StageCall, loop: Mapping[str, Any]) -> None:
        #: One round.
        self.call = call
        self.rounds: int = loop["rounds"]
        self.feed = [(name, call.names.index(output)) for name, output in loop["feed"]]
        self.until = loop["until"]
        #: As those of `StageCall`.
        self.failed: Dict[int, Tuple[int, str]] = {}

    def __call__(self, n_rows: int, inputs: Mapping[str, Any]) -> List[np.ndarray]:
        """The outputs of the last round of each row, and how many rounds that was. Raises what a call raises."""
        living, inputs, self.failed = np.arange(n_rows), dict(inputs), {}
        ended: List[Tuple[np.ndarray, List[np.ndarray]]] = []
        for n in range(1, self.rounds + 1):
            given = self._round(living, inputs)
            ends = self._ends(given) if n < self.rounds else np.ones(len(living), bool)
            for row, failure in self.call.failed.items():
                ends[row] = True
                self.failed[int(living[row])] = failure
            if ends.any():
                ended.append((living[ends], [array[ends] for array in given] + [np.full(ends.sum(), n)]))
                living = living[~ends]
            if not len(living):
                break
            if ends.any():
                inputs = {name: _rows(column, ~ends) for name, column in inputs.items()}
            # The next call may write over what this one has returned.
            inputs.update((name, _input(given[output][~ends])) for name, output in self.feed)
        return _joined(ended)

    def _round(self, living: np.ndarray, inputs: Dict[str, Any]) -> List[np.ndarray]:
        try:
            return self.call(len(living), inputs)
        except ItemError as error:
            if 0 <= error.row < len(living):
                error.row = int(living[error.row])
            raise

    def _ends(self, given: List[np.ndarray]) -> np.ndarray:
        """Whether each row meets the bound. What is no number never does."""
        if self.until is None:
            return np.zeros(len(given[0]), bool)
        name, bound, or_equal = self.until
        values = given[self.call.names.index(name)].reshape(len(given[0])).astype("float64")
        ends: np.ndarray = values <= bound if or_equal else values < bound
        return ends


def _rows(column: Any, kept: np.ndarray) -> Any:
    return column[kept] if isinstance(column, np.ndarray) else [one for one, keep in zip(column, kept) if keep]


def _input(array: np.ndarray) -> Any:
    """Outputs as they come as inputs: read-only arrays, and lists of texts."""
    array.flags.writeable = False
    return array.tolist() if array.dtype == object else array


def _joined(ended: List[Tuple[np.ndarray, List[np.ndarray]]]) -> List[np.ndarray]:
    """The outputs of rows that have ended in several rounds, in their order."""
    order = np.argsort(np.concatenate([rows for rows, _ in ended]))
    return [_concatenated(arrays)[order] for arrays in zip(*(arrays for _, arrays in ended))]


def _concatenated(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """All rows; those of several shapes as objects."""
    if len({(array.dtype, array.shape[1:]) for array in arrays}) == 1:
        return np.concatenate(arrays)
    rows = [row for array in arrays for row in array]
    joined = np.empty(len(rows), dtype=object)
    for at, row in enumerate(rows):
        joined[at] = row
    return joined
