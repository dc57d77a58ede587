"""What the package is made of: its imports, and what it does to the start of a worker."""

import ast
import subprocess
import sys
import unittest

from parent import PACKAGE

FILES = [PACKAGE / "orchestra/__init__.py", *sorted((PACKAGE / "orchestra_stages").glob("*.py"))]
#: Modules that import numpy, so that a worker loads them after the script.
LATE = {"values", "slots", "calls", "loops", "alone", "batches", "check"}


def imports(file):
    """The modules that a file imports of elsewhere, and those of the package."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    absolute = [node for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return (names | {node.module for node in absolute}) - {"__future__"}


def run(code):
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=PACKAGE, capture_output=True, text=True, check=True)
    return done.stdout.strip()


class Imports(unittest.TestCase):
    def test_numpy_is_the_only_dependency(self):
        names = {name.split(".")[0] for file in FILES for name in imports(file)}
        code = f"import importlib.util; print([n for n in {sorted(names)} if importlib.util.find_spec(n) is None])"
        command = [sys.executable, "-I", "-S", "-c", code]
        missing = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        self.assertEqual(missing, "['numpy', 'orchestra_stages']\n")
        project = (PACKAGE / "pyproject.toml").read_text()
        self.assertIn('dependencies = ["numpy"]', project.splitlines())

    def test_a_script_or_a_worker_does_not_import_numpy_before_the_threads_are_known(self):
        said = run(
            "import orchestra, orchestra_stages.worker, orchestra_stages.describe, sys; print('numpy' in sys.modules)"
        )
        self.assertEqual(said, "False")
        late = {file.stem for file in FILES if "numpy" in imports(file)}
        self.assertEqual(late - {"worker", "describe", "writing"}, LATE)

    def test_no_file_beside_a_script_stands_for_a_module_that_is_loaded_late(self):
        loaded = set(run("import orchestra_stages.worker, sys; print(*sys.modules)").split())
        for file in FILES:
            if file.stem in LATE - {"check"}:
                self.assertEqual(imports(file) - {"numpy"} - loaded, set(), file.name)

    def test_the_short_name_is_the_same(self):
        self.assertEqual(run("import orchestra, orchestra_stages as o; print(orchestra.stage is o.stage)"), "True")


if __name__ == "__main__":
    unittest.main()
