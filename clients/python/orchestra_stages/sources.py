"""What a script writes for a source: the decorator `source`. It does not import numpy."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional

from . import hand
from .declare import SHORT_NAMES, ColumnType

#: Types of columns beside tensors.
_TYPES = ("text", "json", "picture")


class SourceDeclaration(NamedTuple):
    """A function with its decorator."""

    name: str
    #: Types as a workflow file has them; `None`: that says them.
    columns: Optional[Dict[str, str]]
    #: What an item is called by; `None` is its number.
    key: Optional[str]
    code: Callable[[], Iterable[Mapping[str, Any]]]


#: The sources of this process, in the order of their decorators.
sources: List[SourceDeclaration] = []


def source(
    code: Optional[Callable[[], Iterable[Mapping[str, Any]]]] = None,
    *,
    columns: Optional[Mapping[str, ColumnType]] = None,
    key: Optional[str] = None,
) -> Any:
    """Makes a source of a function without arguments that yields dicts, or returns a list of them.

    columns: `{"id": "i64", "title": "text", "photo": "picture", "vector": ("float32", [8])}`: `"text"`, `"json"` (any
        value), `"picture"` (a path, relative to the script), or a tensor. A `?` behind the type, as in `"text?"`, has
        rows without it. Without it the workflow file says the types.
    key: the column that an item is called by, a text or a whole number that no other row has. Without it an item is
        called by its number.

    The function is called again by each start of the run, and where its process has died. It must yield the same rows
    again, and new ones besides; without a key behind them.

    Raises `TypeError` for a type that there is not, and a function that takes arguments.
    """
    if code is None:
        return lambda code: source(code, columns=columns, key=key)
    needed = [one for one in inspect.signature(code).parameters.values() if one.default is one.empty]
    if needed or inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code):
        raise TypeError(f"{code.__name__}: a source takes no arguments and awaits nothing; it yields dicts")
    types = None if columns is None else {name: _type_of(name, of) for name, of in columns.items()}
    sources.append(SourceDeclaration(code.__name__, types, key, code))
    hand.offer(code)
    return code


def _type_of(name: str, of: ColumnType) -> str:
    """The type as a workflow file has it; that one is known where tensors are read."""
    given, shape = of if isinstance(of, tuple) else (of, [])
    word = given if isinstance(given, str) else getattr(given, "__name__", repr(given))
    stem, optional = (word[:-1], "?") if word.endswith("?") else (word, "")
    stem = {"str": "text", **{long: short for short, long in SHORT_NAMES.items()}}.get(stem, stem)
    if stem in _TYPES and shape or not all(isinstance(size, int) and size > 0 for size in shape):
        raise TypeError(f"`{name}` cannot be {of}: a shape is a list of sizes, and of tensors alone")
    return stem + (str(list(shape)) if shape else "") + optional
