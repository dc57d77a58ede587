"""Finds the package where nothing is installed: in texts that the orchestra binary carries.

The binary hands this file to an interpreter, with a last line behind it: `run(..)` with the text of each file.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Dict, Optional

_FOLDER = "embedded/"


class EmbeddedFinder:
    """Finds modules among `files`, `{"orchestra_stages/wire.py": text}`."""

    def __init__(self, files: Dict[str, str]) -> None:
        self.files = files

    def find_spec(self, name: str, path: Any = None, target: Optional[ModuleType] = None) -> Optional[ModuleSpec]:
        """`orchestra_stages` comes before an installed one, which may speak another version of the protocol.

        `orchestra` is found here only where no other package has this name. A mere folder is none: it has no loader.
        """
        stem = name.replace(".", "/")
        file = next((one for one in (f"{stem}.py", f"{stem}/__init__.py") if one in self.files), None)
        if file is None:
            return None
        other = PathFinder.find_spec(name) if name == "orchestra" else None
        if other is not None and other.loader is not None:
            return None
        return ModuleSpec(name, self, origin=_FOLDER + file, is_package=file.endswith("/__init__.py"))  # type: ignore

    def create_module(self, spec: ModuleSpec) -> None:
        """The usual kind of module."""

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None and spec.origin is not None, "`find_spec` has given both"
        origin = spec.origin
        exec(compile(self.files[origin[len(_FOLDER) :]], origin, "exec", dont_inherit=True), module.__dict__)


def run(files: Dict[str, str]) -> None:
    sys.meta_path.insert(0, EmbeddedFinder(files))
    from orchestra_stages.__main__ import main

    main()
