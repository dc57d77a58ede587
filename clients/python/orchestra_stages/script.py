"""Loads a script and picks its stage. It does not import numpy, but the script mostly does."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Optional

from .declare import Declaration, declarations, stage


def load(script: str, name: Optional[str] = None) -> Declaration:
    """Runs the script as a module of its own name, with its folder first in `sys.path`.

    Raises what the script raises, and `LookupError` as `pick` does.
    """
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
    return pick(name)


def pick(name: Optional[str] = None) -> Declaration:
    """The stage with this name, or the only one; raises `LookupError` where there is none, or a choice."""
    found = [declaration for declaration in declarations if name in (None, declaration.name)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(declaration.name for declaration in declarations)
    if not names:
        raise LookupError("no function has @orchestra.stage(..)")
    raise LookupError(f'it has the stages {names}: name one with function = ".."')
