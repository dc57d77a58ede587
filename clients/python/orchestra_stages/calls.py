"""Calls the function of a stage, and checks and converts what it returns."""

from __future__ import annotations

import contextlib
import inspect
import sys
from types import GeneratorType
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from .declare import BYTES, DTYPES, LABELS, LIST, PICTURE, TEXT, Column, Declaration, ItemError
from .errors import DATA, TOO_LARGE, WRONG_ROWS, BatchError, is_memory, words

_NUMPY = {name: np.dtype(name) for name in DTYPES}
#: Floats hold all integers up to here; of larger ones some were rounded before.
_EXACT = 2**53
#: Values of a list, those of lists within it included: the parent takes no more.
_MOST_VALUES = 1 << 20
#: What becomes an array of its own.
_NO_ARRAYS = (int, float, bool, list, tuple)


class Room:
    """What the values may hold that travel in an answer. They are counted as they come: a generator may have no end."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.bytes = self.values = 0

    def take(self, n_bytes: int) -> None:
        """Raises `BatchError` where there is no room for a value of so many bytes."""
        self.bytes += n_bytes
        self.values += 1
        if self.bytes > self.most or self.values > _MOST_VALUES:
            if self.values > _MOST_VALUES:
                raise BatchError(f"a list may have {_MOST_VALUES} values, and it gives more: make parts of it", TOO_LARGE)
            why = f"its outputs of open shape have more than {self.most >> 20} MiB, which are there for a batch"
            raise BatchError(f"{why}; raise `limits.memory`, or give less for each row", TOO_LARGE)


def _plain(dtype: np.dtype) -> Tuple[Tuple[type, ...], Any, Any]:
    """Types of numbers that an array of this type takes as they are, from the least to the most of them."""
    if dtype.kind == "f":
        most = float(np.finfo(dtype).max)
        return (float, np.float64, dtype.type), -most, most
    if dtype.kind == "b":
        return (bool, np.bool_), False, True
    return (int, np.int64, dtype.type), int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


_PLAIN = {name: _plain(dtype) for name, dtype in _NUMPY.items()}


class StageCall:
    """The function of a stage, or the instance of its class, with the outputs that it has to give."""

    def __init__(self, declaration: Declaration, outputs: List[Column], room: int = sys.maxsize) -> None:
        code = declaration.code
        self.code: Any = code() if inspect.isclass(code) else code
        self.each = declaration.each
        self.drops = declaration.drops
        #: Bytes that the outputs of open shape of a call may have.
        self.room = room
        #: By hand, what a row raises ends the call.
        self.raises = False
        #: Rows of the last call that the function has dropped. Their outputs stand for nothing.
        self.dropped: List[int] = []
        #: Rows of the last call that have failed, each with the kind and the words of its error. Their outputs stand for nothing.
        self.failed: Dict[int, Tuple[int, str]] = {}
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
            return self._call_each(n_rows, inputs)
        given, room = self._named(self.code(**inputs)), Room(self.room)
        return [self._output(output, n_rows, given[output.name], room) for output in self.outputs]

    def _named(self, given: Any) -> Dict[str, Any]:
        if not isinstance(given, dict) or given.keys() != self._keys:
            what = list(given) if isinstance(given, dict) else type(given).__name__
            raise ValueError(f"it must give a dict of {self.names}, and gave {what}")
        return given

    def _call_each(self, n_rows: int, inputs: Mapping[str, Any]) -> List[np.ndarray]:
        """Rows are called and converted one by one, so that an error is that of its row."""
        self.dropped, self.failed, taken = [], {}, 0
        columns = {output.name: _EachColumn(output, n_rows) for output in self.outputs}
        room = Room(self.room)
        for row, values in enumerate(_by_row(inputs)):
            room.bytes = room.values = 0  # Those of a row.
            try:
                given = self.code(**values)
                if given is None and self.drops:
                    self.dropped.append(row)
                    continue
                if type(given) is not dict or given.keys() != self._keys:
                    given = self._named_row(given)
                for name, column in columns.items():
                    column.put(row, given[name], room)
            except Exception as error:
                if self.raises or is_memory(error):
                    raise
                self.failed[row] = _failure(error)
                continue
            taken += room.bytes
            if taken > self.room:
                raise BatchError("the outputs of its rows have more bytes than are there for a batch", TOO_LARGE)
        return [column.joined() for column in columns.values()]

    def _named_row(self, given: Any) -> Dict[str, Any]:
        if given is None:
            raise ValueError("it gave None; a function that drops rows is declared with drops=True")
        if type(given) is GeneratorType and [output.dtype for output in self.outputs] == [LIST]:
            given = {self.names[0]: given}
        return self._named(given)

    def _output(self, output: Column, n_rows: int, value: Any, room: Room) -> np.ndarray:
        if not output.is_tensor:
            return _one_by_one(output, n_rows, value, room)
        # Each row then runs alone, since a part of the batch might fit by chance.
        kind = WRONG_ROWS if n_rows > 1 else DATA
        try:
            array = _as_array(value, output)
        except ValueError:  # A list of arrays of several shapes.
            return _one_by_one(output, n_rows, value, room)
        shape = [n_rows, *_shape(output)]
        if not _fits(array, shape):
            why = f"output `{output.name}` of {n_rows} rows must have the shape {shape}, and has {[*array.shape]}"
            raise BatchError(why, kind)
        if not _has_no_mask(value):
            _refuse_masked(np.ma.asarray(value), output)
        return _converted(array, output)


#: What stands for a row that has failed or was dropped.
_NOTHING = {TEXT: "", BYTES: b"", LIST: [], LABELS: [], PICTURE: np.zeros([1, 1, 1], "uint8")}


class _EachColumn:
    """An output of rows that are called one by one. What a call gives is copied before the next, which may write over it."""

    def __init__(self, output: Column, n_rows: int) -> None:
        self.output = output
        self.is_fixed = output.is_tensor and None not in _shape(output)
        is_number = self.is_fixed and not output.shape
        plain: Tuple[Tuple[type, ...], Any, Any] = _PLAIN[output.dtype or ""] if is_number else ((), 0, 0)
        self.plain, self.least, self.most = plain
        self.flat = {TEXT: str, BYTES: bytes}.get(output.dtype or "")
        nothing: Any = 0 if is_number else _NOTHING.get(output.dtype or "")
        #: Where a row goes, or a list of what was made of each.
        self.rows: Any = [nothing] * n_rows
        if self.is_fixed and not is_number:
            self.rows = np.zeros([n_rows, *_sizes(output)], output.dtype)

    def put(self, row: int, value: Any, room: Room) -> None:
        kind = type(value)
        if kind in self.plain and self.least <= value <= self.most:
            self.rows[row] = value  # An array of its own would take longer than many functions.
        elif kind is self.flat and (kind is bytes or value.isascii()):
            room.take(len(value))
            self.rows[row] = value  # Nothing writes over it, and it needs no check: as above.
        else:
            self.rows[row] = _array_of(self.output, value)[()] if self.is_fixed else value_of(self.output, value, room)

    def joined(self) -> np.ndarray:
        if self.is_fixed:
            return np.asarray(self.rows, _NUMPY[self.output.dtype or ""])
        if self.output.is_tensor:  # What has failed or was dropped fits the others.
            found = [one for one in self.rows if one is not None]
            stand_in = found[0] if found else np.zeros(_sizes(self.output), self.output.dtype)
            self.rows = [stand_in if one is None else one for one in self.rows]
        return _joined(self.output, self.rows)


def _by_row(inputs: Mapping[str, Any]) -> Iterator[Dict[str, Any]]:
    """The arguments of each call."""
    if len(inputs) == 1:  # The usual case, and several times faster.
        [(name, column)] = inputs.items()
        return ({name: value} for value in column)
    return (dict(zip(inputs, values)) for values in zip(*inputs.values()))


def _failure(error: Exception) -> Tuple[int, str]:
    """The kind and the words of an error of one row."""
    if isinstance(error, BatchError):
        return error.kind, str(error)
    return DATA, str(error.why) if isinstance(error, ItemError) else words(error)


def value_of(output: Column, value: Any, room: Room) -> Any:
    """The value of one row as it is declared, in memory of its own: a `str`, `bytes`, an array, or a list of tuples of such.

    Raises `TypeError` or `ValueError` where it is something else, `ItemError` for a number that its type cannot hold,
    `BatchError` where it has no room.
    """
    if output.dtype == TEXT:
        text = _text(output, value)
        room.take(len(text))
        return text
    if output.dtype == BYTES:
        content = _bytes(output, value)
        room.take(len(content))
        return content
    if output.dtype == LABELS:
        return _labels(output, value, room)
    if output.dtype == LIST:
        columns, rows = output.columns or [], []
        names = [column.name for column in columns]
        if not hasattr(value, "__iter__"):
            raise TypeError(f"output `{output.name}` must be a list of dicts of {names}, and is {type(value).__name__}")
        for row in value:  # Of a generator, each is taken in before it goes on.
            if not isinstance(row, dict) or row.keys() != set(names):
                what = [*row] if isinstance(row, dict) else type(row).__name__
                raise TypeError(f"a row of output `{output.name}` must be a dict of {names}, and is {what}")
            rows.append(tuple(value_of(column, row[column.name], room) for column in columns))
        return rows
    array = _picture(output, value) if output.dtype == PICTURE else _array_of(output, value)
    room.take(array.nbytes)
    return array if type(value) in _NO_ARRAYS else np.array(array)


def _array_of(output: Column, value: Any) -> np.ndarray:
    """The array of one row, which may be that of the script. Raises as `value_of` does."""
    kinds, least, most = _PLAIN[output.dtype or ""]
    if type(value) in kinds and output.shape == [] and least <= value <= most:
        return np.array(value, _NUMPY[output.dtype or ""])  # All that follows would take longer than most functions.
    array = _as_array(value, output)
    if not _fits(array, _shape(output)):
        raise ValueError(f"output `{output.name}` must have the shape {output.shape}, and has {[*array.shape]}")
    if not _has_no_mask(value):
        _refuse_masked(np.ma.asarray(value)[np.newaxis], output)
    return array if array.dtype == output.dtype else _converted(array[np.newaxis], output)[0]


def _refuse_masked(rows: np.ma.MaskedArray, output: Column) -> None:
    for row, *place in np.argwhere(np.ma.getmask(rows)).tolist():
        why = f"output `{output.name}` is masked at {place} of its row: say what stands there, with .filled(..)"
        raise ItemError(row, why)


def _bytes(output: Column, value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        hint = ": use .tobytes()" if hasattr(value, "tobytes") else ""
        raise TypeError(f"output `{output.name}` is declared as bytes, and is {type(value).__name__}{hint}")
    return bytes(value)


def _picture(output: Column, value: Any) -> np.ndarray:
    """`uint8 [height, width, 3 or 1]`, of such an array, one without channels, or a picture of Pillow."""
    mode = getattr(value, "mode", None)  # Of Pillow.
    if isinstance(mode, str) and mode not in ("RGB", "L"):
        raise ValueError(f'output `{output.name}` is a picture of mode {mode}: give picture.convert("RGB"), or "L"')
    array = np.asanyarray(value)
    if array.dtype == bool:
        raise ValueError(f"output `{output.name}` is a picture of uint8, and is bool: white is 255")
    array = array[..., np.newaxis] if array.ndim == 2 else array
    if array.ndim != 3 or array.shape[2] not in (1, 3) or not array.size:
        why = (
            f"output `{output.name}` is a picture: an array [height, width, 3], red, green and blue, or [height, width]"
        )
        raise ValueError(f"{why}; it is {f'of shape {[*array.shape]}' if array.ndim else type(value).__name__}")
    return _array_of(Column(output.name, "uint8", [None, None, None]), array)


def _labels(output: Column, value: Any, room: Room) -> List[Any]:
    """Tuples of a list of dicts of `label`, `class` and `score`."""
    columns = [Column("label", TEXT, []), Column("class", "int64", []), Column("score", "float32", [])]
    labels: List[Any] = value_of(output._replace(dtype=LIST, columns=columns), value, room)
    for (_, place, score), (_, _, before) in zip(labels, labels[:1] + labels):
        if not 0 <= place < 1 << 32:
            raise ValueError(f"output `{output.name}`: a class is a number from 0, and this one is {place}")
        if score > before:
            raise ValueError(f"output `{output.name}`: labels come best first, and {before} stands before {score}")
    return labels


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


def _one_by_one(output: Column, n_rows: int, given: Any, room: Room) -> np.ndarray:
    """An array of a list with a value for each row, each as `value_of` makes it."""
    if not isinstance(given, (list, tuple, np.ndarray)) or len(given) != n_rows:
        what = type(given).__name__ + (f" of {len(given)}" if hasattr(given, "__len__") else "")
        named = {None: "arrays", TEXT: "texts", LIST: "lists", PICTURE: "pictures"}.get(
            None if output.is_tensor else output.dtype, f"values ({output.dtype})"
        )
        why = f"output `{output.name}` of {n_rows} rows must be a list of as many {named}, and is {what}"
        raise BatchError(why, WRONG_ROWS if n_rows > 1 else DATA)
    if output.dtype == TEXT and set(map(type, given)) == {str} and _is_unicode("".join(given)):
        return np.array(given, dtype=object)  # As below, and many times faster.
    values = []
    for row, value in enumerate(given):
        room.values = 0  # Those of one list are bounded.
        try:
            values.append(value_of(output, value, room))
        except BatchError:
            raise
        except (ItemError, TypeError, ValueError) as error:
            raise ItemError(row, error.why if isinstance(error, ItemError) else str(error)) from None
    return _joined(output, values)


def _is_unicode(characters: str) -> bool:
    with contextlib.suppress(UnicodeEncodeError):
        return characters.isascii() or characters.encode() is not None
    return False


def _joined(output: Column, values: Sequence[Any]) -> np.ndarray:
    """An array of all rows; of texts, lists and arrays of several shapes, one of objects."""
    if (output.is_tensor or output.dtype == PICTURE) and len({value.shape for value in values}) == 1:
        return np.stack(values)
    if output.dtype in (TEXT, BYTES):
        return np.array(values, dtype=object)
    joined = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):  # At once, numpy would make a dimension of lists of one length.
        joined[row] = value
    return joined


def _sizes(output: Column) -> List[int]:
    """The shape of a row with nothing in open dimensions."""
    return [size or 0 for size in _shape(output)]


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
    """Integers of Python may stand for floats that hold them. Raises `ValueError` where numpy has rounded one."""
    array = np.asarray(value)
    dtype = _NUMPY[output.dtype or ""]
    if _is_of_numpy(value):
        return array
    if array.dtype.kind == "f" and (abs(array) >= _EXACT).any():
        for number in np.array(value, dtype=object).flat:
            if isinstance(number, int) and abs(number) >= _EXACT and float(number) != number:
                raise ValueError(f"output `{output.name}` is declared as {dtype}, which cannot hold {number}")
    if array.dtype.kind != "i" or dtype.kind != "f":
        return array
    floats = array.astype(dtype)
    return floats if (abs(array) < _EXACT).all() and (floats == array).all() else array


def _is_of_numpy(value: Any) -> bool:
    """Whether its numbers have types of numpy, which are those that the script has chosen."""
    kinds = set(map(type, value)) if isinstance(value, (list, tuple)) else {type(value)}
    return any(issubclass(kind, (np.ndarray, np.generic)) for kind in kinds)


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
