"""Tells the planner what a stage takes and gives, and which files make its results. It does not call the function."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
from typing import Any, Callable, Dict, Iterator, List, Optional

from . import script
from .errors import words


def describe(to: int, path: str, name: Optional[str] = None) -> None:
    """Tells what a stage is, and ends the process."""
    answer(to, lambda: description(path, name))


def answer(to: int, make: Callable[[], Dict[str, Any]]) -> None:
    """Writes JSON to the descriptor `to`, a description or `{"error": text}`, and ends the process."""
    try:
        made = make()
    except BaseException as error:  # An exit of the script is its error, too.
        made = {"error": words(error)}
    os.write(to, json.dumps(made, ensure_ascii=False).encode(errors="replace"))
    os._exit(0)  # Threads that the script has started would go on.


def description(path: str, name: Optional[str] = None) -> Dict[str, Any]:
    """The declaration, and `files`: each file of the script's folder that it imports, with its digest."""
    declaration = script.load(path, name)
    import numpy  # noqa: F401  A Python without it is found while planning.

    modules = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    loaded = [file for file in modules if file.startswith(sys.path[0] + os.sep) and "site-packages" not in file]
    outputs = declaration.outputs
    return {
        "name": declaration.name,
        "inputs": [column.as_json() for column in declaration.inputs],
        "outputs": None if outputs is None else [column.as_json() for column in outputs],
        "batch": declaration.batch,
        "gpu": declaration.gpu,
        "drops": declaration.drops,
        "files": [(os.path.relpath(file, sys.path[0]), _digest(file)) for file in sorted(_with_imports(loaded))],
    }


def _digest(file: str) -> str:
    with open(file, "rb") as content:
        return hashlib.sha256(content.read()).hexdigest()


def _with_imports(files: List[str]) -> List[str]:
    """These files, and what their code imports of the folder at whatever time, such as in a function."""
    found = list(files)
    for file in found:  # It grows.
        for imported in _imports(file) if file.endswith(".py") else ():
            if imported not in found and imported.startswith(sys.path[0] + os.sep):
                found.append(imported)
    return found


def _imports(file: str) -> Iterator[str]:
    """The files that the `import` statements of a file may mean."""
    with open(file, "rb") as content:
        tree = ast.parse(content.read())
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        level, module = getattr(node, "level", 0), getattr(node, "module", None)
        folder = os.path.join(os.path.dirname(file), *[".."] * (level - 1)) if level else sys.path[0]
        for alias in node.names:
            parts = (f"{module}.{alias.name}" if module else alias.name).split(".")
            for n in range(len(parts)):
                stem = os.path.normpath(os.path.join(folder, *parts[: n + 1]))
                yield from filter(os.path.isfile, (f"{stem}.py", os.path.join(stem, "__init__.py")))
