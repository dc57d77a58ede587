"""`python stage.py --check` calls a stage on zeros; `python stage.py --bench` measures it at several batch sizes."""

from __future__ import annotations

import os
import statistics
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Union

import numpy as np

from .calls import StageCall
from .declare import BYTES, TEXT, Column, Declaration, ItemError, column_of
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
    def of(cls, declaration: Declaration, said: Dict[str, str]) -> Trial:
        """Raises `ValueError` for an input that is neither declared nor said, and for one that there is not."""
        names = [one.name for one in declaration.inputs]
        unknown = [name for name in said if name not in names]
        if unknown:
            raise ValueError(f"`{declaration.name}` has no input `{unknown[0]}`; inputs: {', '.join(names)}")
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
            column_of(
                name, {"U": TEXT, "O": TEXT, "S": BYTES}.get(array.dtype.kind, (str(array.dtype), array.shape[1:]))
            )
            for name, array in given
        ]
        call.expect(outputs)
        shown = [
            f'"{one.name}": ' + (f'("{one.dtype}", {one.shape})' if one.is_tensor else f'"{one.dtype}"')
            for one in outputs
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
    takes = {one: of if isinstance(of, str) else _array(inputs[one]) for one, of in trial.inputs.items()}
    gives = {
        one.name: _array(array) if one.is_tensor and array.dtype != object else one.dtype
        for one, array in zip(call.outputs, arrays)
    }
    for does, columns in (("takes", takes), ("gives", gives)):
        print(f"{name} {does} {', '.join(f'{one} {of}' for one, of in columns.items())} for each row")
    print(f"{n_rows} rows of zeros take {seconds * 1e3:.3f} ms")


def _array(column: Any) -> str:
    return f"{column.dtype}{[*column.shape[1:]]}"


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


def run(declaration: Declaration, said: Dict[str, str], options: List[str]) -> int:
    """`--check` and `--bench` of a stage. Gives the exit code; a stage may reject zeros. Raises what it raises otherwise."""
    trial = Trial.of(declaration, said)
    try:
        if "--check" in options:
            check(trial)
    except ItemError as error:
        if not isinstance(error.__cause__, (ItemError, type(None))):
            raise
        print(f"{os.path.basename(sys.argv[0])}: {words(error)}", file=sys.stderr)
    if "--bench" in options:
        bench(trial)
    return 0
