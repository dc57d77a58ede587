"""Loads a script and picks its stage, or another of its functions. It does not import numpy, but the script mostly does."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any, List, Optional

from .declare import Declaration, declarations, stage


def load(script: str, name: Optional[str] = None) -> Declaration:
    """Runs the script, and picks its stage. Raises what the script raises, and `LookupError` as `pick` does."""
    run(script)
    found: Declaration = pick(name)
    return found


def run(script: str) -> None:
    """Runs the script as a module of its own name, with its folder first in `sys.path`."""
    sys.path[0] = os.path.dirname(script)
    spec = importlib.util.spec_from_file_location(os.path.splitext(os.path.basename(script))[0], script)
    assert spec is not None and spec.loader is not None, "a file of Python has a loader"
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (AttributeError, ImportError) as error:
        other = sys.modules.get("orchestra")
        if other is None or getattr(other, "stage", None) is stage:
            raise
        why = f"{error}; `orchestra` is another package here: write `import orchestra_stages as orchestra`"
        raise type(error)(why).with_traceback(error.__traceback__) from None


def pick(name: Optional[str] = None, *, among: List[Any] = declarations, what: str = "stage") -> Any:
    """The stage with this name, or the only one; raises `LookupError` where there is none, or a choice."""
    found = [declaration for declaration in among if name in (None, declaration.name)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(declaration.name for declaration in among)
    if not names:
        raise LookupError(f"no function has @orchestra.{what}(..)")
    if name is not None and not found:
        raise LookupError(f"there is no {what} `{name}`; there are: {names}")
    raise LookupError(f'it has the {what}s {names}: name one, function = ".." in the file, or by hand --check NAME')
