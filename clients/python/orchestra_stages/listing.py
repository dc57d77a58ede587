"""The process that lists a source. It does not import numpy.

A row travels as JSON in UTF-8 without a `#`, behind its name. What is wrong with a row travels in its place, as a text,
so that its item alone fails.
"""

from __future__ import annotations

import json
import math
import os
import select
import threading
import traceback
from typing import Any, Dict, List, Mapping, NoReturn, Optional, Tuple

from . import script
from .describe import answer
from .errors import words
from .sources import SourceDeclaration, sources
from .wire import ints, text
from .worker import Connection

#: Bytes of a row, and of its name.
_LONGEST, _LONGEST_NAME = 64 << 10, 4 << 10
#: Frames to the parent.
_ROWS, _DONE, _FAILED = 0, 1, 2
#: A frame is sent with so many bytes, or after so many milliseconds.
_FULL, _SOON = 64 << 10, 100


def find(path: str, name: Optional[str] = None) -> SourceDeclaration:
    """Runs the script, and picks its source."""
    script.run(path)
    found: SourceDeclaration = script.pick(name, among=sources, what="source")
    return found


def describe(to: int, path: str, name: Optional[str] = None) -> None:
    """Tells the planner what an item holds, as `describe.describe` does of a stage."""

    def description() -> Dict[str, Any]:
        found = find(path, name)
        return {"name": found.name, "columns": None if found.columns is None else list(found.columns.items())}

    answer(to, description)


def list_rows(path: str, name: Optional[str] = None) -> NoReturn:
    """Sends all rows to the parent, and ends the process."""
    sender = RowSender(Connection())
    end = ints(_DONE)
    try:
        declaration = find(path, name)
        for number, row in enumerate(declaration.code()):
            sender.add(*item(declaration, number, row))
    except BaseException as error:  # An exit of the script is its error, too.
        traceback.print_exception(type(error), error, error.__traceback__)
        end = ints(_FAILED) + text(words(error))
    sender.end(end)
    os._exit(0)  # Threads that the script has started would go on.


class RowSender:
    """Gathers rows for a frame. A thread sends what waits, so that no row waits for the next one, and ends the process
    with the connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._rows: List[bytes] = []
        self._bytes = 0
        threading.Thread(target=self._send_soon, daemon=True).start()

    def add(self, name: str, row: bytes) -> None:
        with self._lock:
            self._rows.append(text(name) + text(row))
            self._bytes += len(row) + len(name)
            if self._bytes >= _FULL:
                self._send()

    def end(self, frame: bytes) -> None:
        with self._lock:
            self._send()
            self._connection.send(frame)

    def _send_soon(self) -> None:
        poll = select.poll()
        poll.register(self._connection.socket, select.POLLRDHUP)
        while not poll.poll(_SOON):
            with self._lock:
                self._send()
        os._exit(0)

    def _send(self) -> None:
        if not self._rows:
            return
        try:
            self._connection.send(ints(_ROWS, len(self._rows)) + b"".join(self._rows))
        except OSError:
            os._exit(0)  # The parent has hung up.
        self._rows, self._bytes = [], 0


class RowError(ValueError):
    """What is wrong with a row."""


def item(declaration: SourceDeclaration, number: int, row: Any) -> Tuple[str, bytes]:
    """The name of a row, and what it holds; or what is wrong with it, as a text of JSON."""
    name = str(number) if declaration.key is None else f"row {number}"  # Until it is known.
    try:
        _check(declaration, row)
        if declaration.key is not None:
            name = _name(declaration.key, row[declaration.key])
        return name, _encoded(row)
    except Exception as error:
        why = str(error) if isinstance(error, RowError) else words(error)
        return name, _without_hash(json.dumps(why[:4096]))


def _check(declaration: SourceDeclaration, row: Any) -> None:
    if not isinstance(row, Mapping):
        raise RowError(f"the source yields a {type(row).__name__} where a dict is expected")
    columns, key = declaration.columns, declaration.key
    if key is not None and key not in row:
        raise RowError(f"the row has no `{key}`, which items are called by")
    unknown = [one for one in row if one != key and columns is not None and one not in columns]
    if unknown:
        raise RowError(f"the row has `{unknown[0]}`, which `columns` does not name")


def _name(key: str, value: Any) -> str:
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise RowError(f"`{key}` is a {type(value).__name__}, and items are called by a text or a whole number")
    name = str(value)
    if not name or "\0" in name or len(name.encode(errors="replace")) > _LONGEST_NAME:
        raise RowError(f"`{key}` cannot name an item: it is empty, has a NUL or more than {_LONGEST_NAME} bytes")
    return name.encode(errors="replace").decode()


def _encoded(row: Mapping[str, Any]) -> bytes:
    try:
        content = _dumps(dict(row))
    except ValueError:  # It holds numbers that JSON lacks, or itself.
        content = _dumps(_special(dict(row), 0))
    encoded = _without_hash(content)
    if len(encoded) > _LONGEST:
        raise RowError(
            f"the row has {len(encoded)} bytes, and at most {_LONGEST} are listed: yield what names it, and read the "
            "rest in a stage with each=True"
        )
    return encoded


def _dumps(row: Any) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False, default=_plain, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # An array or a number of numpy.
        return value.tolist()
    raise RowError(f"a {type(value).__name__} is no JSON: yield a text, a number, a list or a dict")


def _special(value: Any, depth: int) -> Any:
    """The value with the words that sources take for NaN and infinities."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if depth > 100:
        raise RowError("the row is nested more than 100 deep")
    if isinstance(value, dict):
        return {name: _special(one, depth + 1) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_special(one, depth + 1) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _without_hash(content: str) -> bytes:
    """A `#` stands in texts of JSON alone, where it may be escaped: the list of items has another use for it."""
    try:
        return content.replace("#", "\\u0023").encode()
    except UnicodeEncodeError as error:
        raise RowError(f"the row holds a text that is no Unicode: {error.reason}") from None
