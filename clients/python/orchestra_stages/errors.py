"""How an error of a script is told, and which kind of failure it is. It does not import numpy."""

from __future__ import annotations

import os
import socket
import sys
import traceback

#: Kinds of `Failed`, see docs/guide/worker-protocol.md.
OUT_OF_MEMORY, DATA, DEVICE, ONE_ROW, WRONG_ROWS, DIFFERS_ALONE, TOO_LARGE = 0, 1, 2, 3, 4, 5, 6

#: Words of errors that a sandbox may have caused.
_PERMISSION = ("permission denied", "not permitted", "no usable temporary directory")
#: Characters of an error that are told.
_LONGEST = 4096


class BatchError(ValueError):
    """What a function returned does not fit. `kind` says what the parent does with the batch."""

    def __init__(self, why: str, kind: int) -> None:
        super().__init__(why)
        self.kind = kind


def is_memory(error: BaseException) -> bool:
    """Whether memory ran out, on the host or by the names that CuPy and PyTorch give it."""
    return isinstance(error, MemoryError) or type(error).__name__ in ("MemoryError", "OutOfMemoryError")


def words(error: BaseException) -> str:
    """The error in a line, with the last place in the folder of the script.

    If the sandbox may have caused it, the words of `ORCHESTRA_CONFINED` follow: they name the keys that allow more.
    """
    kind = "ValueError" if isinstance(error, BatchError) else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if os.path.dirname(frame.filename) == sys.path[0]]
    place = f" ({os.path.basename(own[-1].filename)}:{own[-1].lineno})" if own else ""
    confined = os.environ.get("ORCHESTRA_CONFINED")
    hint = f"; {confined}" if confined is not None and _may_be_refused(error) else ""
    return f"{kind}: {_text(error)[:_LONGEST]}{place}{hint}"


def _may_be_refused(error: BaseException) -> bool:
    """Whether the error, or one that it follows from, looks like a permission that was missing."""
    cause: BaseException | None = error
    while cause is not None:
        text = _text(cause).lower()
        if isinstance(cause, (PermissionError, socket.gaierror)) or any(word in text for word in _PERMISSION):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as other:  # `__str__` of the script.
        return f"its words cannot be read, {type(other).__name__}"
