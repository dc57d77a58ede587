"""What a script writes for a sink: the decorator `sink`. It does not import numpy."""

from __future__ import annotations

import inspect
from typing import Any, Callable, List, NamedTuple, Optional, TypeVar

from . import hand

Code = TypeVar("Code", bound=Callable[..., Any])


class SinkDeclaration(NamedTuple):
    """A function or class with its decorator."""

    name: str
    code: Callable[..., Any]


#: The sinks of this process, in the order of their decorators.
sinks: List[SinkDeclaration] = []


def sink(code: Optional[Code] = None) -> Any:
    """Makes a sink of a function `write(rows, part)`, or of a class with `__call__`, which is made once in its process.

    rows: a list of dicts: `item` (its name), `index` (its number), `source`, and the columns that the sink reads.
    part: the number of this part of the results, from 0. Parts come one after the other.

    A part counts when the function has returned. It is written again if the process or the run dies before that: the
    same rows under the same number. Writing a part again must therefore give what writing it once gives.

    Raises `TypeError` for a function that does not take both arguments.
    """
    if code is None:
        return sink
    is_class = inspect.isclass(code)
    call: Any = code.__call__ if is_class else code  # type: ignore[operator]  # noqa: B004
    try:
        inspect.signature(call).bind(*[None] * (2 + is_class))
    except TypeError:
        raise TypeError(f"{code.__name__}: a sink is called with two arguments, rows and part") from None
    if any(
        test(call) for test in (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    ):
        raise TypeError(f"{code.__name__}: a sink must write before it returns, not await or yield")
    sinks.append(SinkDeclaration(code.__name__, code))
    hand.offer(code)
    return code
