"""Runs one batch: from its slots and values to the answer."""

from __future__ import annotations

import time
import traceback
from typing import Any, Callable, Dict, List

import numpy as np

from .alone import AloneCheck
from .calls import StageCall
from .declare import Declaration, ItemError
from .errors import DATA, DEVICE, ONE_ROW, OUT_OF_MEMORY, BatchError, is_memory, words
from .loops import LoopCall
from .slots import Slots, is_device_broken, lock_pages
from .values import ValueReader, done_outputs
from .wire import DONE, FAILED, Load, Run, ints, text


class Answer:
    """The frame to send. After `is_broken` the process has to end: the device fails each further call."""

    def __init__(self, frame: bytes, is_broken: bool = False) -> None:
        self.frame = frame
        self.is_broken = is_broken


class _Timing:
    """Nanoseconds before, in and after the call; what did not end counts as none."""

    before = run = after = 0

    def ints(self) -> bytes:
        return ints(self.before, self.run, self.after)


class Batches:
    """A stage that is ready to run."""

    def __init__(self, load: Load, declaration: Declaration, rss: Callable[[], int]) -> None:
        self.load = load
        self.rss = rss
        outputs = load.outputs[:-1] if load.loop else load.outputs  # The last one of a loop says the rounds.
        #: One call of the function, and all that there is to do with a batch.
        self.once = StageCall(declaration, outputs, load.answer_bytes)
        self.call = LoopCall(self.once, load.loop) if load.loop else self.once
        # A row that is called alone has nothing of others.
        self.alone = AloneCheck(self.once.names, bool(load.gpu), is_off=declaration.each)
        self.open_outputs = [index for index, place in enumerate(load.places) if place is None]
        self.inputs, self.outputs = Slots.inputs(load), Slots.outputs(load)
        if load.gpu:
            lock_pages(self.inputs, self.outputs)

    def run(self, run: Run) -> Answer:
        """`Done`, or `Failed` with the kind of the error."""
        timing = _Timing()
        try:
            values = ValueReader(run.values).rows(self.load.values, run.rows) if run.values is not None else {}
            arrays = self._call(run, values, timing)
            seconds = timing.run / 1e9
            answers = [piece for index in self.open_outputs for piece in done_outputs(index, arrays[index])]
            dropped, failed = self.once.dropped, self.call.failed
            frame = ints(DONE, run.batch, len(answers)) + b"".join(answers) + ints(len(dropped), *dropped)
            frame += ints(len(failed)) + b"".join([ints(row, kind) + text(why) for row, (kind, why) in failed.items()])
            frame += timing.ints() + ints(self.rss())
            if failed and self.load.gpu and is_device_broken():
                why = next(why for _, why in failed.values())
                return Answer(ints(FAILED, run.batch, DEVICE) + text(why) + timing.ints(), is_broken=True)
            if self.alone.is_due(run.rows, seconds):
                self._compare(run, values, arrays, seconds)
            return Answer(frame)
        except BaseException as error:  # An exit of the script fails its batch, too.
            return self._failed(run, error, timing)

    def _call(self, run: Run, values: Dict[str, List[Any]], timing: _Timing) -> List[np.ndarray]:
        """The outputs, of which those of fixed shape are in their slot, too."""
        inputs = self._inputs(run, values, 0, run.rows)
        began = time.perf_counter_ns()
        arrays = self.call(run.rows, inputs)
        ran = time.perf_counter_ns()
        for array, place in zip(arrays, self.load.places):
            if place:
                self.outputs.rows(run.output_slot, place, run.first, run.rows)[...] = array
        timing.run = ran - began
        timing.after = time.perf_counter_ns() - ran
        return arrays

    def _compare(self, run: Run, values: Dict[str, List[Any]], arrays: List[np.ndarray], seconds: float) -> None:
        """Of a loop, the first round: what rounds otherwise at first may take other rounds."""
        if self.load.loop:
            arrays = self.once(run.rows, self._inputs(run, values, 0, run.rows))
        batch = [
            # The next call may write over what this one has returned.
            self.outputs.rows(run.output_slot, place, run.first, run.rows)
            if place and not self.load.loop
            else np.array(array)
            for array, place in zip(arrays, self.load.places)
        ]
        self.alone.compare(batch, run.rows, seconds, lambda row, n: self.once(n, self._inputs(run, values, row, n)))

    def _inputs(self, run: Run, values: Dict[str, List[Any]], row: int, n_rows: int) -> Dict[str, Any]:
        """By name, from this row of the run on."""
        inputs: Dict[str, Any] = {
            span.name: self.inputs.rows(run.slot, span, run.first + row, n_rows) for span in self.load.inputs
        }
        inputs.update((name, column[row : row + n_rows]) for name, column in values.items())
        return inputs

    def _failed(self, run: Run, error: BaseException, timing: _Timing) -> Answer:
        is_broken = bool(self.load.gpu) and is_device_broken()
        kind, why = [_kind(error)], words(error)
        if isinstance(error, ItemError) and 0 <= error.row < run.rows:
            kind, why = [ONE_ROW, error.row], str(error.why)
        elif run.rows == 1:  # Larger batches are halved: the log names the item at fault alone.
            traceback.print_exception(type(error), error, error.__traceback__)
        kind = [DEVICE] if is_broken else kind
        return Answer(ints(FAILED, run.batch, *kind) + text(why) + timing.ints(), is_broken)


def _kind(error: BaseException) -> int:
    if is_memory(error):
        return OUT_OF_MEMORY
    return error.kind if isinstance(error, BatchError) else DATA
