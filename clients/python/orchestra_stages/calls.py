"""Calls the function of a stage, and checks and converts what it returns."""

from __future__ import annotations

import contextlib
import inspect
from types import GeneratorType
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np

from .declare import DTYPES, LIST, TEXT, Column, Declaration, ItemError
from .errors import DATA, WRONG_ROWS, BatchError, is_memory, words

_NUMPY = {name: np.dtype(name) for name in DTYPES}
#: Floats hold all integers up to here; of larger ones some were rounded before.
_EXACT = 2**53


class StageCall:
    """The function of a stage, or the instance of its class, with the outputs that it has to give."""

    def __init__(self, declaration: Declaration, outputs: List[Column]) -> None:
        code = declaration.code
        self.code: Any = code() if inspect.isclass(code) else code
        self.each = declaration.each
        self.drops = declaration.drops
        #: Rows of the last call that the function has dropped. Their outputs stand for nothing.
        self.dropped: List[int] = []
        self.expect(outputs)

    def expect(self, outputs: List[Column]) -> None:
        """These outputs from now on."""
        self.outputs = outputs
        self.names = [output.name for output in outputs]
        self._keys = set(self.names)

    def __call__(self, n_rows: int, inputs: Mapping[str, Any]) -> List[np.ndarray]:
        """The outputs in the order of their declaration: arrays `[n_rows, *shape]` of the declared types; of texts and
        lists, arrays of objects `[n_rows]`.

        Raises `ItemError` for a row with a value that its type cannot hold, `BatchError` where an output has another
        shape than declared, and whatever the function raises.
        """
        if self.each:
            return self._call_each(inputs)
        given = self._named(self.code(**inputs))
        return [self._output(output, n_rows, given[output.name]) for output in self.outputs]

    def _named(self, given: Any) -> Dict[str, Any]:
        if not isinstance(given, dict) or given.keys() != self._keys:
            what = list(given) if isinstance(given, dict) else type(given).__name__
            raise ValueError(f"it must give a dict of {self.names}, and gave {what}")
        return given

    def _call_each(self, inputs: Mapping[str, Any]) -> List[np.ndarray]:
        """Rows are called and converted one by one, so that an error is that of its row."""
        rows: List[Optional[List[Any]]] = []
        for row, values in enumerate(zip(*inputs.values())):
            try:
                rows.append(self._row(dict(zip(inputs, values))))
            except Exception as error:
                if is_memory(error):
                    raise
                raise ItemError(row, error.why if isinstance(error, ItemError) else words(error)) from error
        self.dropped = [row for row, values in enumerate(rows) if values is None]
        stand_in = next(filter(None, rows), None) or [_nothing(output) for output in self.outputs]
        return [
            _joined(output, values)
            for output, values in zip(self.outputs, zip(*[values or stand_in for values in rows]))
        ]

    def _row(self, inputs: Dict[str, Any]) -> Optional[List[Any]]:
        """The values of one row; `None` if it is dropped."""
        given = self.code(**inputs)
        if given is None and self.drops:
            return None
        if given is None:
            raise ValueError("it gave None; a function that drops rows is declared with drops=True")
        if type(given) is GeneratorType and [output.dtype for output in self.outputs] == [LIST]:
            given = {self.names[0]: given}
        given = self._named(given)
        return [value_of(output, given[output.name]) for output in self.outputs]

    def _output(self, output: Column, n_rows: int, value: Any) -> np.ndarray:
        if not output.is_tensor:
            return _texts_or_lists(output, n_rows, value)
        # Each row then runs alone, since a part of the batch might fit by chance.
        kind = WRONG_ROWS if n_rows > 1 else DATA
        try:
            array = _as_array(value, output)
        except ValueError as error:  # A list of arrays of several shapes.
            raise BatchError(str(error), kind) from error
        shape = [n_rows, *_shape(output)]
        if not _fits(array, shape):
            why = f"output `{output.name}` of {n_rows} rows must have the shape {shape}, and has {[*array.shape]}"
            raise BatchError(why, kind)
        if not _has_no_mask(value):
            for row, *place in np.argwhere(np.ma.getmask(np.ma.asarray(value))).tolist():
                why = f"output `{output.name}` is masked at {place} of its row: say what stands there, with .filled(..)"
                raise ItemError(row, why)
        return _converted(array, output)


def value_of(output: Column, value: Any) -> Any:
    """The value of one row as it is declared: a `str`, an array, or a list of tuples of such.

    Raises `TypeError` or `ValueError` where it is something else, `ItemError` for a number that its type cannot hold.
    """
    if output.dtype == TEXT:
        return _text(output, value)
    if output.dtype == LIST:
        columns = output.columns or []
        names = [column.name for column in columns]
        rows = list(value)
        for row in rows:
            if not isinstance(row, dict) or row.keys() != set(names):
                what = [*row] if isinstance(row, dict) else type(row).__name__
                raise TypeError(f"a row of output `{output.name}` must be a dict of {names}, and is {what}")
        return [tuple(value_of(column, row[column.name]) for column in columns) for row in rows]
    array = _as_array(value, output)
    if not _fits(array, _shape(output)):
        raise ValueError(f"output `{output.name}` must have the shape {output.shape}, and has {[*array.shape]}")
    return array if array.dtype == output.dtype else _converted(array[np.newaxis], output)[0]


def _nothing(output: Column) -> Any:
    """A value of this type."""
    if output.is_tensor:
        return np.zeros([size or 0 for size in _shape(output)], output.dtype)
    return "" if output.dtype == TEXT else []


def _text(output: Column, value: Any) -> str:
    if type(value) is str and value.isascii():
        return value
    if not isinstance(value, str):
        raise TypeError(f"output `{output.name}` is declared as text, and is {type(value).__name__}, not str")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"output `{output.name}` is no text: {error}") from None
    return str.__str__(value)  # Of a subclass, such as an enum, its characters.


def _texts_or_lists(output: Column, n_rows: int, given: Any) -> np.ndarray:
    """An array of objects `[n_rows]`, each as `value_of` makes it."""
    if not isinstance(given, (list, tuple, np.ndarray)) or len(given) != n_rows:
        what = type(given).__name__ + (f" of {len(given)}" if hasattr(given, "__len__") else "")
        why = f"output `{output.name}` of {n_rows} rows must be a list of as many {output.dtype}s, and is {what}"
        raise BatchError(why, WRONG_ROWS if n_rows > 1 else DATA)
    if output.dtype == TEXT and set(map(type, given)) == {str} and _is_unicode("".join(given)):
        return np.array(given, dtype=object)  # As below, and many times faster.
    values = []
    for row, value in enumerate(given):
        try:
            values.append(value_of(output, value))
        except (ItemError, TypeError, ValueError) as error:
            raise ItemError(row, error.why if isinstance(error, ItemError) else str(error)) from None
    return _joined(output, values)


def _is_unicode(characters: str) -> bool:
    with contextlib.suppress(UnicodeEncodeError):
        return characters.isascii() or characters.encode() is not None
    return False


def _joined(output: Column, values: Sequence[Any]) -> np.ndarray:
    if output.is_tensor:
        try:
            return np.stack(values)
        except ValueError as error:  # Several shapes.
            raise BatchError(str(error), WRONG_ROWS) from error
    joined = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):  # At once, numpy would make a dimension of lists of one length.
        joined[row] = value
    return joined


def _shape(output: Column) -> List[int | None]:
    assert output.shape is not None, "the planner knows the shape of each output"
    return output.shape


def _fits(array: np.ndarray, shape: Sequence[int | None]) -> bool:
    return array.ndim == len(shape) and all(want in (None, size) for want, size in zip(shape, array.shape))


def _has_no_mask(value: Any) -> bool:
    """Decides by types alone: to look at each element of a list takes longer than most functions."""
    if isinstance(value, np.ndarray):
        return type(value) is np.ndarray or _is_plain(type(value))
    return isinstance(value, (list, tuple)) and all(map(_is_plain, set(map(type, value))))


def _is_plain(kind: type) -> bool:
    return kind in (np.ndarray, int, float, bool) or issubclass(kind, np.generic)


def _as_array(value: Any, output: Column) -> np.ndarray:
    """Integers of Python may stand for floats that hold them."""
    array = np.asarray(value)
    dtype = _NUMPY[output.dtype or ""]
    if isinstance(value, (np.ndarray, np.generic)) or array.dtype.kind != "i" or dtype.kind != "f":
        return array
    floats = array.astype(dtype)
    return floats if (abs(array) < _EXACT).all() and (floats == array).all() else array


def _converted(array: np.ndarray, output: Column) -> np.ndarray:
    """The rows in the declared type, by the rule of docs/guide/numbers.md.

    Raises `ValueError` for a type that does not become the other, `ItemError` for a number that it cannot hold.
    """
    dtype, name = _NUMPY[output.dtype or ""], output.name
    if array.dtype == dtype:
        return array
    convertible = "iuf" if dtype.kind in "iu" else dtype.kind
    if not np.can_cast(array.dtype, dtype, "safe") and array.dtype.kind not in convertible:
        raise ValueError(f'output `{name}` is declared as {dtype}, and is {array.dtype}: use .astype("{dtype}")')
    with np.errstate(all="ignore"):  # What does not fit is found below.
        made = array.astype(dtype)
    if array.dtype.kind == "f":
        if dtype.kind == "f":
            wrong = np.isinf(made) & np.isfinite(array)
        else:
            wrong = (made != array) | (np.abs(array) >= _EXACT)
    elif dtype.kind == "f":
        wrong = (np.abs(made) >= _EXACT) & (np.abs(array) != _EXACT)
    else:
        wrong = made != array
    for row, *place in np.argwhere(wrong).tolist():
        number = array[(row, *place)]
        was_rounded = dtype == "int64" and array.dtype.kind == "f" and _EXACT <= abs(number) < 2**63
        hint = "; a float from 2^53 on may stand for another integer" if was_rounded else ""
        raise ItemError(
            row, f"output `{name}` is declared as {dtype}, which cannot hold {number} at {place} of its row{hint}"
        )
    return made
