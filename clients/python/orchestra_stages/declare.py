"""What a script writes: the decorator `stage`, and `ItemError`. It does not import numpy."""

from __future__ import annotations

import functools
import inspect
import operator
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, TypeVar, Union, overload

from . import hand

#: Types of tensors by their names in numpy. The place of a type is its number in frames.
DTYPES = ["float32", "float16", "int64", "int32", "uint8", "bool", "float64", "int16"]

#: Types that are no tensors: a `str`, a list of dicts, `bytes`, `uint8 [height, width, 3 or 1]`, and a list of dicts of
#: `label`, `class` and `score`.
TEXT, LIST, BYTES, PICTURE, LABELS = "text", "list", "bytes", "picture", "labels"

#: The names that workflow files use.
SHORT_NAMES = {
    "f32": "float32",
    "f16": "float16",
    "i64": "int64",
    "i32": "int32",
    "u8": "uint8",
    "f64": "float64",
    "i16": "int16",
}

#: `("float32", [3, None])`, `"float32"`, `"text"`, `"picture"`, `"labels"`, `"bytes"`, `("bytes", "png")`, or a dict of
#: columns by their names.
ColumnType = Any
Code = TypeVar("Code", bound=Callable[..., Any])


class ItemError(Exception):
    """Rejects one row: its item fails with the text `why`, and the others run again without it.

    `row` is the number of the row in the arrays of this call, counted from 0.
    """

    def __init__(self, row: Any, why: object) -> None:
        super().__init__(f"row {row}: {why}")
        self.row: int = operator.index(row)
        self.why = why


class Column(NamedTuple):
    """An input or an output. `shape` is that of one row; `None` in it is a size that is not known."""

    name: str
    #: `None` where nothing is declared.
    dtype: Optional[str]
    shape: Optional[List[Optional[int]]]
    #: Of a list, the columns of its rows.
    columns: Optional[List[Column]] = None
    #: Of bytes, what the names of their files end with.
    format: str = ""

    @property
    def is_tensor(self) -> bool:
        return self.dtype is None or self.dtype in DTYPES

    def as_json(self) -> Dict[str, Any]:
        columns = None if self.columns is None else [column.as_json() for column in self.columns]
        return {**self._asdict(), "columns": columns}

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Column:
        """An output as the planner writes it: `{"name", "dtype", "shape"}`, `columns` of a list, or no shape."""
        if said["dtype"] == LIST:
            return cls(said["name"], LIST, [], [cls.from_json(column) for column in said["columns"]])
        return column_of(said["name"], (said["dtype"], said["shape"]) if "shape" in said else said["dtype"])


class Declaration(NamedTuple):
    """A function or class with its decorator."""

    name: str
    inputs: List[Column]
    outputs: Optional[List[Column]]
    batch: Optional[int]
    gpu: bool
    each: bool
    code: Callable[..., Any]
    drops: bool = False


#: The stages of this process, in the order of their decorators.
declarations: List[Declaration] = []


@overload
def stage(code: Code) -> Code: ...
@overload
def stage(
    code: None = None,
    *,
    outputs: Optional[Mapping[str, ColumnType]] = None,
    inputs: Optional[Mapping[str, ColumnType]] = None,
    batch: Optional[int] = None,
    gpu: bool = False,
    each: bool = False,
    drops: bool = False,
) -> Callable[[Code], Code]: ...
def stage(
    code: Optional[Code] = None,
    *,
    outputs: Optional[Mapping[str, ColumnType]] = None,
    inputs: Optional[Mapping[str, ColumnType]] = None,
    batch: Optional[int] = None,
    gpu: bool = False,
    each: bool = False,
    drops: bool = False,
) -> Union[Code, Callable[[Code], Code]]:
    """Makes a stage of a function, or of a class with `__call__`, which is made once in each worker.

    outputs: `{"name": ("float32", [3, None])}`, type and shape of a row; a `None` in the shape is known after the
        call. `"text"` is a list of `str`, `"bytes"` of `bytes` (`("bytes", "png")` says what files of them are called),
        `"picture"` of arrays `uint8 [height, width, 3 or 1]`, `"labels"` of lists of dicts of `label`, `class` and
        `score`, best first. `{"box": ("float32", [4]), "name": "text"}` is, for each row, a list of dicts with these
        keys. Without it the workflow file says what the stage gives.
    inputs: declared in the same way, arrays only; a `None` in the shape is any size. An input that is not declared may
        be any column. What is no array of one shape comes as a list with a value for each row: `str`, `bytes`, an
        array (a picture is `uint8 [height, width, channels]`), a list of dicts, or `None` where it is missing.
    batch: the most rows of a call.
    gpu: it runs on the GPUs of the run.
    each: it is a function of one row. An exception then fails that row alone. It may be a generator: what it yields are
        the rows of its only output, a list.
    drops: it is a function of one row that may return `None`, which drops the row, as `filter` does.

    Arguments without a default are the inputs. Raises `TypeError` where the declaration and the arguments do not fit.
    """
    if code is None:
        return functools.partial(stage, outputs=outputs, inputs=inputs, batch=batch, gpu=gpu, each=each, drops=drops)
    declarations.append(_declaration(code, outputs, inputs or {}, batch, gpu, each, drops))
    hand.offer(code)
    return code


def _declaration(
    code: Callable[..., Any],
    outputs: Optional[Mapping[str, ColumnType]],
    inputs: Mapping[str, ColumnType],
    batch: Optional[int],
    gpu: bool,
    each: bool,
    drops: bool,
) -> Declaration:
    is_class = inspect.isclass(code)
    call: Any = code.__call__ if is_class else code  # type: ignore[operator]  # noqa: B004
    if inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call):
        raise TypeError(f"{code.__name__}: it must return what it gives, not await it")
    if inspect.isgeneratorfunction(call) and not each:
        raise TypeError(f"{code.__name__}: it may yield with each=True alone: what it yields are the parts of one row")
    if drops and not each:
        raise TypeError(
            f"{code.__name__}: `drops` goes with each=True: a function of one row that returns None drops it"
        )
    parameters = list(inspect.signature(call).parameters.values())[is_class:]
    names = [parameter.name for parameter in parameters if parameter.default is parameter.empty]
    no_input = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    if not names or any(one.kind in no_input for one in parameters) or not set(inputs) <= set(names):
        raise TypeError(
            f"{code.__name__}: each input must be an argument of its own, which may be named; `inputs` may name these "
            f"alone: {', '.join(names)}"
        )
    takes = [column_of(name, inputs[name]) if name in inputs else Column(name, None, None) for name in names]
    if not all(column.is_tensor for column in takes):
        raise TypeError(f"{code.__name__}: only arrays are declared as inputs; what is not declared may be any column")
    gives = None if outputs is None else [_output(code, column_of(name, of)) for name, of in outputs.items()]
    if inspect.isgeneratorfunction(call) and (gives is None or [column.dtype for column in gives] != [LIST]):
        raise TypeError(
            f'{code.__name__}: what it yields are the rows of one list, outputs={{"parts": {{"box": ("float32", [4]), '
            '"name": "text"}}'
        )
    return Declaration(code.__name__, takes, gives, batch, gpu, each, code, drops)


def _output(code: Callable[..., Any], column: Column) -> Column:
    """An output, which has a shape; raises `TypeError` where it has none."""
    for one in column.columns or [column]:
        if one.columns is not None:
            _output(code, one)
        elif one.shape is None:
            of = f'"{one.name}": ("{one.dtype or "float32"}", [])'
            raise TypeError(f"{code.__name__}: say the shape of `{one.name}`, too: {of} is one number, [3] three")
    return column


def column_of(name: str, of: ColumnType) -> Column:
    """The column that `of` declares; raises `TypeError` for a type or a shape that there is not."""
    if isinstance(of, dict) and of:
        return Column(name, LIST, [], [column_of(column, one) for column, one in of.items()])
    given, shape = (of, None) if isinstance(of, (str, type)) else (of[0], of[1])
    if given in (TEXT, str):
        return Column(name, TEXT, [])
    if given in (PICTURE, LABELS) and shape is None:
        return Column(name, given, [])
    if given in (BYTES, bytes) and (shape is None or isinstance(shape, str)):
        return Column(name, BYTES, [], format=(shape or "").lstrip("."))
    dtype: Any = getattr(given, "__name__", given)  # Of a type of numpy, its name.
    dtype = SHORT_NAMES.get(dtype, dtype)
    if dtype not in DTYPES and (dtype, shape) != (None, None):
        raise TypeError(
            f"`{name}` cannot be {dtype}; types are {', '.join(DTYPES)}, with a shape, and of outputs text, bytes, "
            "picture, labels and dicts of columns"
        )
    if not all(size is None or isinstance(size, int) and size >= 0 for size in shape or ()):
        raise TypeError(f"`{name}`: {shape} is no shape of a row: a list of sizes, or of None")
    return Column(name, dtype, None if shape is None else list(shape))
