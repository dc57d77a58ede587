"""The process of a sink: is sent one part after the other, and answers each. It imports numpy for rows with tensors.

A row is a line of JSON, `{"item", "index", "source", "values"}`, with a value for each column.
"""

from __future__ import annotations

import inspect
import json
import os
import traceback
from typing import Any, Dict, List, NoReturn, Optional

from . import script
from .declare import SHORT_NAMES
from .describe import answer
from .errors import words
from .sinks import SinkDeclaration, sinks
from .wire import Reader, Row, ints, text
from .worker import Connection

# Frames from the parent.
_PART, _BYTES, _END = 0, 1, 2
# Frames to the parent.
_DONE, _FAILED = 1, 2


def find(path: str, name: Optional[str] = None) -> SinkDeclaration:
    """Runs the script, and picks its sink."""
    script.run(path)
    found: SinkDeclaration = script.pick(name, among=sinks, what="sink")
    return found


def describe(to: int, path: str, name: Optional[str] = None) -> None:
    """Tells the planner that there is a sink."""
    answer(to, lambda: {"name": find(path, name).name})


def write_parts(path: str, name: Optional[str] = None) -> NoReturn:
    """Writes parts until the parent hangs up."""
    connection = Connection()
    write: Any = None
    while True:
        part, columns, content = _receive(connection)
        end = ints(_DONE)
        try:
            if write is None:
                code: Any = find(path, name).code
                write = code() if inspect.isclass(code) else code
            write(rows_of(content, columns), part)
        except BaseException as error:  # An exit of the script is its error, too.
            traceback.print_exception(type(error), error, error.__traceback__)
            end = ints(_FAILED) + text(words(error))
        connection.send(end)


def _receive(connection: Connection) -> Any:
    """The number of the next part, its columns and its bytes."""
    part, columns, content = 0, [], bytearray()
    while True:
        frame: Reader = connection.receive()
        kind = frame.integer()
        if kind == _PART:
            part, columns = frame.integer(), json.loads(frame.text())
        elif kind == _BYTES:
            content += frame.blob()
        elif kind == _END:
            return part, columns, content
        else:
            os._exit(76)


def rows_of(content: bytes, columns: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """The rows of a part; `columns` are `{"name", "ty"}`, in the order of the values of a row."""
    return [_row(json.loads(line), columns) for line in bytes(content).splitlines()]


def _row(said: Dict[str, Any], columns: List[Dict[str, Any]]) -> Dict[str, Any]:
    values = zip(columns, said["values"])
    row = {"item": said["item"], "index": said["index"], "source": said["source"]}
    return Row({**row, **{column["name"]: value(said, column["ty"]) for column, said in values}})


def value(said: Any, ty: Any) -> Any:
    """`str`, `bytes`, a number, an array, labels or rows as a list of dicts, or `None` where it is missing."""
    if said is None or ty == "text":
        return said
    if ty == "labels":
        return [{**label, "score": float(_number(label["score"]))} for label in said]
    kind, of = next(iter(ty.items()))
    if kind == "optional":
        return value(said, of)
    if kind == "bytes":
        return bytes.fromhex(said)
    if kind == "list":
        return [_of_list(row, of) for row in said]
    if isinstance(said, dict):
        said = {**said, "data": _numbers(said["data"])}
        import numpy

        return numpy.array(said["data"], SHORT_NAMES.get(said["dtype"], said["dtype"])).reshape(said["shape"])
    return _number(said)


def _of_list(row: Any, columns: List[Dict[str, Any]]) -> Dict[str, Any]:
    return Row({column["name"]: value(said, column["ty"]) for column, said in zip(columns, row)})


def _number(said: Any) -> Any:
    """A number; those that JSON lacks come as words."""
    return float(said) if isinstance(said, str) else said


def _numbers(said: Any) -> Any:
    return [_numbers(one) for one in said] if isinstance(said, list) else _number(said)
