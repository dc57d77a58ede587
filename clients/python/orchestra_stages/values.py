"""Values that lie in no slot, in both directions: inputs of `RunWithValues`, outputs of `Done`."""

from __future__ import annotations

from itertools import chain
from struct import Struct
from typing import Any, Dict, List

import numpy as np

from .declare import DTYPES
from .wire import Reader, Row, ints, text

# Kinds of a value in `RunWithValues`.
_TENSOR, _LABELS, _TEXT, _BYTES, _LIST = 0, 1, 2, 3, 4
_LENGTH = Struct("<I")


class ValueReader(Reader):
    """Reads the values of rows."""

    def rows(self, declared: List[Dict[str, Any]], n_rows: int) -> Dict[str, List[Any]]:
        """For each input of `Load.values`, a list with a value for each row."""
        values = self.values([one["ty"] for one in declared] * n_rows)
        return {one["name"]: values[at :: len(declared)] for at, one in enumerate(declared)}

    def value(self, ty: Any) -> Any:
        """`str`, `bytes`, an array, a number, labels or rows as a list of dicts, or `None` where it is missing."""
        return self.values([ty])[0]

    def values(self, types: List[Any]) -> List[Any]:
        """As many values, one behind the other. Texts and bytes are read here: by `blob` they would take three times as long."""
        data, at, values = self.data, self.at, []
        for ty in types:
            kind, n = data[at], data[at + 1]
            if kind != _TEXT and kind != _BYTES:
                self.at = at + 1
                values.append(self._other(kind, ty))
                at = self.at
                continue
            at += 2
            if n > 250:
                size = 1 << (n - 250)
                n = int.from_bytes(data[at : at + size], "little")
                at += size
            values.append(data[at : at + n].decode() if kind == _TEXT else data[at : at + n])
            at += n
        self.at = at
        return values

    def _other(self, kind: int, ty: Any) -> Any:
        """A value of this kind, which is neither a text nor bytes."""
        if kind == _TENSOR:
            _, dtype, shape = self.blob(), DTYPES[self.integer()], self.items(self.integer)
            return np.frombuffer(self.blob(), dtype).reshape(shape)[()]
        if kind == _LABELS:
            return self.items(lambda: {"label": self.text(), "class": self.integer(), "score": self.float32()})
        if kind == _LIST:
            columns = ty.get("optional", ty)["list"]
            return self.items(lambda: self._row(columns))
        self.blob()  # The name of the column that is missing.
        return None

    def _row(self, columns: List[Dict[str, Any]]) -> Dict[str, Any]:
        columns = columns[: self.integer()]
        row = zip(columns, self.values([column["ty"] for column in columns]))
        return Row({column["name"]: value for column, value in row if column["ty"] != "placement"})


def done_outputs(index: int, array: np.ndarray) -> List[bytes]:
    """An output of open shape as `Done` holds it: an array; of an array of objects, a text, bytes or a list for each row, or
    arrays of several shapes, each in a piece of its own."""
    rows = [array] if array.dtype != object else array.tolist()
    if rows and isinstance(rows[0], np.ndarray):
        pieces = rows if array.dtype != object else [row[np.newaxis] for row in rows]
        dtype = DTYPES.index(pieces[0].dtype.name)
        return [ints(index, dtype, piece.ndim, *piece.shape) + text(piece.tobytes()) for piece in pieces]
    each = [one.encode() if type(one) is str else one if type(one) is bytes else packed(one) for one in rows]
    data = b"".join(chain.from_iterable(zip(map(_LENGTH.pack, map(len, each)), each)))
    return [ints(index, DTYPES.index("uint8"), 1, len(data)) + text(data)]


def packed(value: Any) -> bytes:
    """A text, bytes, an array, or a list of tuples of such, without types: both sides know the declaration."""
    if isinstance(value, list):
        return ints(len(value)) + b"".join([packed(one) for row in value for one in row])
    return text(value) if isinstance(value, (str, bytes)) else ints(*value.shape) + text(value.tobytes())
