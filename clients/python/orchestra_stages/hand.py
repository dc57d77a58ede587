"""What `python stage.py --check` and `--bench` do. Of a source or a sink it does not import numpy."""

from __future__ import annotations

import atexit
import itertools
import json
import os
import sys
from typing import Any, Callable, Dict, List, Tuple

from .errors import words

_OPTIONS = ("--check", "--bench")
_USAGE = """python {script} --check [NAME] [INPUT=TYPE ..]   calls a stage on zeros, or takes the first rows of a source
python {script} --bench [NAME] [INPUT=TYPE ..]   measures a stage at several sizes of a batch

NAME is one of several functions. Inputs that are not declared are named with their types:
x=float32:3,32,32, x=text, x=bytes, x=list, x=picture"""
#: Rows of a source that are looked at.
_ROWS = 5


def offer(code: Callable[..., Any]) -> None:
    """At the end of a script that was started for it, does what its command line says."""
    arguments = sys.argv[1:]
    is_meant = any(one in _OPTIONS for one in arguments) or arguments[:1] in (["check"], ["bench"])
    # What parses arguments answers `--help` itself.
    asks_help = arguments == ["--help"] and "argparse" not in sys.modules
    if code.__module__ == "__main__" and (is_meant or asks_help):
        atexit.unregister(main)
        atexit.register(main)


def main() -> None:
    """Ends the process: with 1 where something is wrong, which it says on standard error."""
    try:
        status = _run(sys.argv[1:])
    except BaseException as error:
        status = 1
        print(f"{os.path.basename(sys.argv[0])}: {words(error)}", file=sys.stderr)
    script_failed = hasattr(sys, "last_value")
    sys.stdout.flush()
    os._exit(status or int(script_failed))


def _run(arguments: List[str]) -> int:
    options = [one for one in arguments if one.startswith("-")]
    if "--help" in options:
        print(_USAGE.format(script=os.path.basename(sys.argv[0])))
        return 0
    unknown = [one for one in options if one not in _OPTIONS]
    if unknown or not options:
        raise LookupError(f"there is no {(unknown or arguments)[0]}; write --check, --bench or --help")
    inputs = dict(one.split("=", 1) for one in arguments if "=" in one)
    what, declaration = _picked([one for one in arguments if one not in options and "=" not in one])
    if what == "stage":
        from .check import run

        return run(declaration, inputs, options)
    if "--bench" in options:
        raise LookupError(f"`{declaration.name}` is a {what}: --bench measures stages")
    if what == "source":
        return _check_source(declaration)
    print(
        f"{declaration.name} is a sink, which is not called here, since it writes; by hand: {declaration.name}(rows, 0)"
    )
    return 0


def _picked(names: List[str]) -> Tuple[str, Any]:
    """Which of the functions of the script is meant, and what it is."""
    from .declare import declarations
    from .script import pick
    from .sinks import sinks
    from .sources import sources

    all_of: Dict[str, List[Any]] = {"stage": declarations, "source": sources, "sink": sinks}
    found = {what: among for what, among in all_of.items() if any(one.name in names or not names for one in among)}
    among = next(iter(found.values())) if len(found) == 1 else [one for of in all_of.values() for one in of]
    declaration = pick(*names[:1], among=among, what=next(iter(found)) if len(found) == 1 else "function")
    return next(what for what, of in all_of.items() if declaration in of), declaration


def _check_source(declaration: Any) -> int:
    """Shows the first rows, as they are sent. Raises what the function raises."""
    from .listing import item

    status, n = 0, 0
    for n, row in enumerate(itertools.islice(declaration.code(), _ROWS), 1):
        name, content = item(declaration, n - 1, row)
        sent = json.loads(content)
        is_wrong = isinstance(sent, str)  # A row is a dict.
        status |= int(is_wrong)
        print(f"{name}: {sent if is_wrong else content.decode()[:200]}", file=sys.stderr if is_wrong else sys.stdout)
    if not n:
        raise LookupError(f"{declaration.name} yields no row")
    print(f"{declaration.name} yields {'the rows' if n < _ROWS else 'rows as the first'} above")
    return status
