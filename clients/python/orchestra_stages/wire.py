"""Integers, texts and frames of docs/guide/worker-protocol.md. It does not import numpy."""

from __future__ import annotations

import json
import struct
from typing import Any, Callable, Dict, List, Optional, TypeVar, Union

from .declare import DTYPES, Column

PROTOCOL = 18

# Frames from the parent.
LOAD, RUN, RUN_WITH_VALUES = 0, 1, 2
# Frames from the worker.
HELLO, LOADED, LOAD_FAILED, DONE, FAILED, HEARTBEAT = 0, 1, 2, 3, 4, 5

T = TypeVar("T")


def integer(n: int) -> bytes:
    """Up to 64 bits in the shortest form: 1, 3, 5 or 9 bytes."""
    if n < 251:
        return bytes((n,))
    if n < 1 << 16:
        return b"\xfb" + n.to_bytes(2, "little")
    if n < 1 << 32:
        return b"\xfc" + n.to_bytes(4, "little")
    return b"\xfd" + n.to_bytes(8, "little")


def ints(*numbers: int) -> bytes:
    """Each number, one behind the other."""
    return b"".join(map(integer, numbers))


def text(content: Union[str, bytes]) -> bytes:
    """A text or bytes, behind their length."""
    data = content.encode(errors="replace") if isinstance(content, str) else content
    return ints(len(data)) + data


class Row(Dict[str, Any]):
    """The columns of a part or of a record, by their names."""

    def __missing__(self, key: str) -> Any:
        raise KeyError(f"there is no column {key!r}; the row has {', '.join(map(repr, self))}")


class Reader:
    """Reads a frame from its start on. Raises `IndexError` or `struct.error` behind its end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def integer(self) -> int:
        first = self.data[self.at]
        self.at += 1
        if first < 251:
            return first
        size = 1 << (first - 250)
        self.at += size
        if self.at > len(self.data):
            raise IndexError("an integer is cut")
        return int.from_bytes(self.data[self.at - size : self.at], "little")

    def blob(self) -> bytes:
        n = self.integer()
        self.at += n
        return self.data[self.at - n : self.at]

    def text(self) -> str:
        return self.blob().decode()

    def float32(self) -> float:
        self.at += 4
        return float(struct.unpack_from("<f", self.data, self.at - 4)[0])

    def items(self, item: Callable[[], T]) -> List[T]:
        return [item() for _ in range(self.integer())]

    def optional(self, item: Callable[[], T]) -> Optional[T]:
        return item() if self.integer() else None

    def size(self) -> Optional[int]:
        """A dimension; `None` is open."""
        return self.integer() if self.integer() == 0 else None


class NoSense(Exception):
    """A frame that is not the one that the protocol has here."""


class Span:
    """A tensor within a slot: row `r` begins `offset + row_bytes * r` bytes into it."""

    def __init__(self, frame: Reader) -> None:
        self.name = frame.text()
        self.dtype = DTYPES[frame.integer()]
        #: That of a row.
        self.shape = frame.items(frame.size)
        frame.size()  # The batch.
        self.offset = frame.integer()
        self.row_bytes = frame.integer()


class Load:
    """The first frame from the parent: what the worker is for, and where its rows lie."""

    def __init__(self, frame: Reader) -> None:
        if frame.integer() != LOAD:
            raise NoSense("the first frame is no `Load`")
        spec = json.loads(frame.blob())
        self.outputs = [Column.from_json(output) for output in spec["outputs"]]
        #: Inputs that lie in no slot, as `{"name", "ty"}`.
        self.values: List[Dict[str, Any]] = spec["values"]
        #: How the stage runs on its own outputs, if it does: see `loops`.
        self.loop: Optional[Dict[str, Any]] = spec["loop"]
        #: The UUID of a GPU; `None` is the CPU.
        self.gpu = frame.optional(frame.text)
        self.threads = frame.integer()
        frame.integer()  # Batches at once: one.
        frame.optional(frame.integer)  # The size to pad batches to: they keep theirs.
        frame.integer()  # Rows of a slot: those of a run fit.
        self.slots = frame.integer()
        self.inputs = frame.items(lambda: Span(frame))
        #: `None` for an output of open shape, which travels in `Done`.
        self.places = frame.items(lambda: frame.optional(lambda: Span(frame)))
        self.input_slot_bytes = frame.integer()
        self.output_slot_bytes = frame.integer()
        #: Bytes that the outputs of open shape of a batch may have.
        self.answer_bytes = frame.integer()


class Run:
    """A batch: `rows` rows, from `first` on, of a slot of the inputs and one of the outputs."""

    def __init__(self, frame: Reader) -> None:
        kind = frame.integer()
        if kind not in (RUN, RUN_WITH_VALUES):
            raise NoSense("the frame is no run")
        self.batch = frame.integer()
        frame.integer()  # The attempt.
        self.slot = frame.integer()
        self.output_slot = frame.integer()
        self.first = frame.integer()
        self.rows = frame.integer()
        #: For each row the values of `Load.values`.
        self.values = frame.blob() if kind == RUN_WITH_VALUES else None
