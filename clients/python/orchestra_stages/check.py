"""`python stage.py --check` calls a stage on zeros; `python stage.py --bench` measures it at several batch sizes.

The rest of the command line is the same: `[STAGE] [INPUT=float32:3,32,32] [INPUT=text] ..`, where a stage is named if
there are several, and each input that is not declared is said.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Union

import numpy as np

from . import script
from .calls import StageCall
from .declare import TEXT, Column, Declaration, ItemError, column_of
from .errors import is_memory, words

#: A value of columns that are no tensors: of zeros, and made up.
_VALUES: Dict[str, Callable[[], Any]] = {
    "text": str,
    "bytes": bytes,
    "list": list,
    "picture": lambda: np.zeros([8, 8, 3], "uint8"),
}
_MADE_UP: Dict[str, Callable[[], Any]] = {
    "text": lambda: "sixteen letters " * 4,
    "bytes": lambda: np.random.default_rng(0).bytes(1024),
    "list": list,
    "picture": lambda: np.random.default_rng(0).integers(0, 256, [224, 224, 3], "uint8"),
}
_LARGEST_BATCH = 256
#: Sizes up to here of the fastest are as good: one measurement differs by this much from the next.
_AS_GOOD = 0.95

Inputs = Dict[str, Union[np.ndarray, List[Any]]]


class Trial(NamedTuple):
    """A stage as its command line names it, and what each of its inputs is: a column, or a name of `_VALUES`."""

    declaration: Declaration
    inputs: Dict[str, Union[Column, str]]

    @classmethod
    def of(cls, arguments: List[str]) -> Trial:
        """Raises `LookupError` as `pick` does, `ValueError` for an input that is neither declared nor said."""
        said = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
        names = [argument for argument in arguments if "=" not in argument and argument[0] != "-"]
        declaration = script.pick(*names)
        return cls(declaration, {one.name: _input(one, said.get(one.name, "")) for one in declaration.inputs})

    def zeros(self, n_rows: int) -> Inputs:
        """Arrays of zeros `[n_rows, ..]`, with 1 for each open size; of other columns lists of what is empty."""
        return {
            name: [_VALUES[one]()] * n_rows if isinstance(one, str) else np.zeros(_shape(one, n_rows), one.dtype)
            for name, one in self.inputs.items()
        }

    def made_up(self, n_rows: int) -> Inputs:
        """The same with numbers that differ: floats of a normal distribution, integers from 0 to 99."""
        generator = np.random.default_rng(0)

        def array(column: Column) -> np.ndarray:
            shape, dtype = _shape(column, n_rows), np.dtype(column.dtype)
            if dtype.kind == "f":
                return generator.standard_normal(shape).astype(dtype)
            return generator.integers(0, 2 if dtype.kind == "b" else 100, shape).astype(dtype)

        return {
            name: [_MADE_UP[one]()] * n_rows if isinstance(one, str) else array(one)
            for name, one in self.inputs.items()
        }

    def call(self, inputs: Inputs) -> StageCall:
        """The function. What it gives is found out by a call where it is not declared."""
        declaration = self.declaration
        if declaration.outputs is not None:
            call = StageCall(declaration, declaration.outputs)
            call.raises = True
            return call
        if declaration.each:
            raise ValueError("declare `outputs` in the decorator: they are found out of functions of batches alone")
        call = StageCall(declaration, [])
        given = [(name, np.asarray(value)) for name, value in call.code(**inputs).items()]
        outputs = [
            column_of(name, TEXT if array.dtype.kind in "UO" else (str(array.dtype), array.shape[1:]))
            for name, array in given
        ]
        call.expect(outputs)
        shown = [
            f'"{one.name}": ' + ('"text"' if one.dtype == TEXT else f'("{one.dtype}", {one.shape})') for one in outputs
        ]
        print(f"declare outputs={{{', '.join(shown)}}}")
        return call


def _input(column: Column, said: str) -> Union[Column, str]:
    if said in _VALUES:
        return said
    if said:
        dtype, _, shape = said.partition(":")
        column = column_of(column.name, (dtype, [int(size) for size in shape.split(",") if size]))
    if column.shape is None:
        raise ValueError(
            f"say what `{column.name}` is: --check {column.name}=float32:3,32,32, or ={', ='.join(_VALUES)}, or "
            "`inputs` of the decorator"
        )
    return column


def _shape(column: Column, n_rows: int) -> List[int]:
    return [n_rows, *(size or 1 for size in column.shape or ())]


def check(trial: Trial) -> None:
    """Calls the stage twice on zeros, and prints what it takes, gives and costs. Raises what the call raises."""
    name, n_rows = trial.declaration.name, trial.declaration.batch or 8
    inputs = trial.zeros(n_rows)
    call = trial.call(inputs)
    call(n_rows, inputs)
    began = time.perf_counter()
    arrays = call(n_rows, inputs)
    seconds = time.perf_counter() - began
    outputs = dict(zip(call.names, arrays))
    print(f"{name} takes {_shown(inputs)} for each row")
    print(f"{name} gives {_shown(outputs)} for each row")
    print(f"{n_rows} rows of zeros take {seconds * 1e3:.3f} ms")


def _shown(columns: Dict[str, Any]) -> str:
    def of(column: Any) -> str:
        if isinstance(column, list) or column.dtype == object:
            return "text" if isinstance(column[0], str) else "bytes" if isinstance(column[0], bytes) else "list"
        return f"{column.dtype}{[*column.shape[1:]]}"

    return ", ".join(f"{name} {of(column)}" for name, column in columns.items())


def bench(trial: Trial, largest: Optional[int] = None, seconds_per_size: float = 0.3) -> None:
    """Calls the stage on made-up rows at batches of 1, 2, 4 .. rows, and prints the median time of a call for each.

    It goes to 256 rows, or to `batch` of the decorator if that is more, and stops where memory ends. Raises what
    another failed call raises.
    """
    batch = trial.declaration.batch
    largest = largest or max(batch or 0, _LARGEST_BATCH)
    sizes = sorted({1 << n for n in range(largest.bit_length())} | {batch or 1})
    call = trial.call(trial.made_up(1))
    print(f"{trial.declaration.name} on made-up rows; the way to and from a worker is not in it")
    print(f"{'batch':>6} {'rows/s':>12} {'ms per call':>12}")
    rates: Dict[int, float] = {}
    for n_rows in sizes:
        try:
            seconds = _median(call, n_rows, trial.made_up(n_rows), seconds_per_size)
        except Exception as error:
            if not is_memory(error) or not rates:
                raise
            print(f"{n_rows:>6} out of memory")
            break
        rates[n_rows] = n_rows / seconds
        print(f"{n_rows:>6} {rates[n_rows]:>12,.0f} {seconds * 1e3:>12.3f}{'  declared' if n_rows == batch else ''}")
    fastest = max(rates.values())
    best = next(n_rows for n_rows, rate in rates.items() if rate >= _AS_GOOD * fastest)
    print(f"batch={best} is the smallest within {1 - _AS_GOOD:.0%} of the fastest")


def _median(call: StageCall, n_rows: int, inputs: Inputs, seconds: float) -> float:
    """The median time of a call, of three or more that take so long together, after one that is not counted."""
    call(n_rows, inputs)
    times: List[float] = []
    while len(times) < 3 or sum(times) < seconds:
        began = time.perf_counter()
        call(n_rows, inputs)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    """Ends the process: with 1 where something is wrong, which it says on standard error."""
    status = 0
    try:
        trial = Trial.of(sys.argv[1:])
        for flag, run in (("--check", check), ("--bench", bench)):
            if flag in sys.argv:
                run(trial)
    except BaseException as error:
        rejects_zeros = isinstance(error, ItemError) and isinstance(error.__cause__, (ItemError, type(None)))
        status = 0 if rejects_zeros and "--bench" not in sys.argv else 1
        print(f"{os.path.basename(sys.argv[0])}: {words(error)}", file=sys.stderr)
    script_failed = hasattr(sys, "last_value")
    sys.stdout.flush()
    os._exit(status or int(script_failed))
