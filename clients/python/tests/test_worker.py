"""Real worker processes and planners' questions, from `Hello` to the hang-up."""

import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from parent import PACKAGE, Frame, Parent, embedded_text, installed, integer, load, run, span, text

SCRIPT = """
import sys
import numpy as np
import orchestra

@orchestra.stage(batch=8, outputs={"twice": ("f32", [4]), "title": "text", "parts": {"n": ("i64", [])}})
def f(x, name):
    assert not x.flags.writeable and not x.flags.owndata
    if x[0, 0] == 8:
        raise orchestra.ItemError(1, "rejected")
    if x[0, 0] == 16:
        raise KeyError("sixteen")
    if x[0, 0] == 24:
        return {"twice": x[:1], "title": name, "parts": []}
    if x[0, 0] == 32:
        x = x - x.sum()
    return {"twice": 2 * x, "title": [str(one) for one in name], "parts": [[{"n": len(one or "")}] for one in name]}
"""
OUTPUTS = [
    {"name": "twice", "dtype": "f32", "shape": [4]},
    {"name": "title", "dtype": "text", "shape": []},
    {"name": "parts", "dtype": "list", "columns": [{"name": "n", "dtype": "i64", "shape": []}]},
]
VALUES = [{"name": "name", "ty": {"optional": "text"}}]
SLOT = 8 * 16
LOAD = load(
    OUTPUTS, [span("x", "f32", [4], 0, 16)], [span("twice", "f32", [4], 0, 16), None, None], VALUES, (SLOT, SLOT)
)
NAMES = integer(2) + text("ab") + integer(5) + text("name")


class Scripts(unittest.TestCase):
    def setUp(self):
        self.folder, elsewhere = self.new_folder(), self.new_folder()
        self.script = self.write("stage.py", SCRIPT)
        self.embedded = elsewhere / "text"
        self.embedded.write_text(embedded_text())

    def new_folder(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return Path(folder.name).resolve()

    def write(self, name, content):
        file = self.folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
        return str(file)

    def from_binary(self, mode, script):
        """The command as the orchestra binary starts it, without anything installed."""
        return [sys.executable, str(self.embedded), mode, script]


class Worker(Scripts):
    def ended(self, worker, code):
        with self.assertRaises((EOFError, ConnectionError)):
            worker.receive()
        self.assertEqual(worker.process.wait(60), code)

    def loaded(self, worker):
        worker.receive()
        worker.send(LOAD)
        self.assertEqual(worker.receive().integer(), 1)

    def failed(self, worker, frame):
        """The batch, the kind of the failure and its row, and the words."""
        worker.send(frame)
        answer = worker.receive()
        self.assertEqual(answer.integer(), 4)
        batch, kind = answer.integer(), answer.integer()
        row = answer.integer() if kind == 3 else None
        said = batch, kind, row, answer.text()
        [answer.integer() for _ in range(3)]
        self.assertTrue(answer.is_at_end())
        return said

    def test_a_worker_says_hello_loads_runs_and_ends_with_the_connection(self):
        for command in (installed(self.script), self.from_binary("worker", self.script)):
            with Parent(command) as worker:
                hello = worker.receive()
                said = [hello.integer(), hello.integer(), hello.text(), hello.integer(), hello.integer()]
                self.assertEqual(said, [0, 18, "tested", worker.process.pid, 0])
                worker.send(LOAD)
                answer = worker.receive()
                self.assertEqual(
                    [answer.integer(), answer.integer(), answer.text(), answer.integer()], [1, 1, "cpu", 1]
                )
                self.assertRegex(answer.text(), r"^python 3\.\d+\.\S+, numpy \d")
                self.assertEqual(answer.integer(), 0)
                answer.integer()
                self.assertGreater(answer.integer(), 1 << 20)
                # Rows 3 and 4 of slot 1, into slot 0 of the outputs.
                worker.inputs[SLOT + 48 : SLOT + 80] = struct.pack("<8f", *range(1, 9))
                worker.send(run(7, 2, slot=1, first=3, values=NAMES))
                answer = worker.receive()
                self.assertEqual([answer.integer() for _ in range(3)], [3, 7, 2])
                titles = b"\x02\0\0\0ab" + b"\x04\0\0\0None"
                self.assertEqual([answer.integer() for _ in range(4)], [1, 4, 1, len(titles)])
                self.assertEqual(answer.blob(), titles)
                parts = b"".join(b"\x0a\0\0\0\x01\x08" + struct.pack("<q", n) for n in (2, 0))
                self.assertEqual([answer.integer() for _ in range(4)], [2, 4, 1, len(parts)])
                self.assertEqual(answer.blob(), parts)
                [answer.integer() for _ in range(6)]  # No row that is dropped or has failed, times, and memory.
                self.assertTrue(answer.is_at_end())
                self.assertEqual(struct.unpack("<8f", worker.outputs[48:80]), tuple(range(2, 18, 2)))
            self.assertEqual(worker.process.returncode, 0)

    def test_a_failed_batch_says_its_kind_and_the_worker_goes_on(self):
        with Parent(self.from_binary("worker", self.script)) as worker:
            self.loaded(worker)
            for first, expected in [
                (8, (3, 1, "rejected")),
                (16, (1, None, "KeyError: 'sixteen' (stage.py:12)")),
                (24, (4, None, "ValueError: output `twice` of 2 rows must have the shape [2, 4], and has [1, 4]")),
            ]:
                worker.inputs[:32] = struct.pack("<8f", first, *range(7))
                self.assertEqual(self.failed(worker, run(first, 2, values=NAMES)), (first, *expected))
            worker.inputs[:32] = struct.pack("<8f", 32, *range(7))
            *_, kind, row, why = self.failed(worker, run(1, 2, values=NAMES))
            self.assertEqual((kind, row), (5, None))
            self.assertIn("alone (item 0 of a batch of 2): the items of a batch change each other", why)
            worker.inputs[:16] = struct.pack("<4f", 1, 2, 3, 4)
            worker.send(run(2, 1, values=integer(2) + text("x")))
            self.assertEqual(worker.receive().integer(), 3)

    def test_garbage_ends_the_worker(self):
        with Parent(self.from_binary("worker", self.script)) as worker:
            self.loaded(worker)
            worker.send(b"\x09")
            self.ended(worker, 76)
        with Parent(self.from_binary("worker", self.script)) as worker:
            worker.receive()
            worker.send(LOAD[:40])
            self.ended(worker, 76)

    def test_a_script_that_cannot_be_loaded_is_told(self):
        for script, why in [
            ("import orchestra\n1 / 0\n", "ZeroDivisionError: division by zero (stage.py:2)"),
            ("import orchestra\n", "LookupError: no function has @orchestra.stage(..)"),
            ("raise SystemExit('left')\n", "SystemExit: left (stage.py:1)"),
        ]:
            self.write("stage.py", script)
            with Parent(self.from_binary("worker", self.script)) as worker:
                worker.receive()
                worker.send(LOAD)
                answer = worker.receive()
                self.assertEqual([answer.integer(), answer.integer(), answer.text()], [2, 2, why])
                self.ended(worker, 69)

    def test_threads_are_set_before_the_script_and_numpy_is_loaded(self):
        head = "import os, sys\nassert 'numpy' not in sys.modules and os.environ['OMP_NUM_THREADS']\n"
        self.write("stage.py", head + SCRIPT)
        with Parent(self.from_binary("worker", self.script)) as worker:
            self.loaded(worker)


class Planner(Scripts):
    def described(self, **environment):
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment}
        command = self.from_binary("describe", self.script)
        done = subprocess.run(command, capture_output=True, env=env, check=True)
        return json.loads(done.stdout)

    def test_a_description_has_the_columns_and_the_files(self):
        self.write("helper.py", "import other\n")
        self.write("other.py", "")
        self.write("stage.py", SCRIPT.replace("    assert", "    import helper\n    assert"))
        described = self.described()
        files = described.pop("files")
        self.assertEqual([name for name, _ in files], ["helper.py", "other.py", "stage.py"])
        self.assertEqual({len(digest) for _, digest in files}, {64})
        column = {"shape": [], "columns": None, "format": ""}
        columns = [
            {**column, "name": "twice", "dtype": "float32", "shape": [4]},
            {"name": "title", "dtype": "text", **column},
            {**column, "name": "parts", "dtype": "list", "columns": [{"name": "n", "dtype": "int64", **column}]},
        ]
        inputs = [{**column, "name": name, "dtype": None, "shape": None} for name in ("x", "name")]
        expected = {"name": "f", "inputs": inputs, "outputs": columns, "batch": 8, "gpu": False, "drops": False}
        self.assertEqual(described, expected)

    def test_the_short_name_goes_to_another_package_that_is_installed(self):
        long_name = SCRIPT.replace("import orchestra", "import orchestra_stages as orchestra")
        for name, is_package in [
            ("a/orchestra.py", True),
            ("b/orchestra/__init__.py", True),
            ("c/orchestra/x.txt", False),
        ]:
            file = self.folder / name
            file.parent.mkdir(parents=True)
            file.touch()
            self.write("stage.py", SCRIPT)
            described = self.described(PYTHONPATH=str(self.folder / name[0]))
            if is_package:
                why = "; `orchestra` is another package here: write `import orchestra_stages as orchestra` (stage.py:6)"
                self.assertRegex(described["error"], "^AttributeError: ")
                self.assertIn(why, described["error"])
                self.write("stage.py", long_name)
                described = self.described(PYTHONPATH=str(self.folder / name[0]))
            self.assertEqual(described["name"], "f", name)

    def test_an_installed_package_does_not_stand_for_that_of_the_binary(self):
        self.write("orchestra_stages/__init__.py", "raise ImportError('of another version')")
        self.assertEqual(self.described()["name"], "f")
        self.assertEqual(self.described(PYTHONPATH=f"{self.folder}:{PACKAGE}")["name"], "f")

    def test_an_error_is_told(self):
        self.write(
            "stage.py", "import orchestra\n@orchestra.stage(outputs={'y': ('complex64', [4])})\ndef f(x): pass\n"
        )
        why = (
            "TypeError: `y` cannot be complex64; types are float32, float16, int64, int32, uint8, bool, float64, int16, "
            "with a shape, and of outputs text, bytes, picture, labels and dicts of columns"
        )
        # The line of the decorator, or before Python 3.9 that of its function.
        self.assertRegex(self.described()["error"], rf"^{why} \(stage.py:[23]\)$")


class FrameOfTheParent(unittest.TestCase):
    def test_it_reads_what_it_writes(self):
        for n in (0, 250, 251, 1 << 16, 1 << 32):
            self.assertEqual(Frame(integer(n)).integer(), n)


if __name__ == "__main__":
    unittest.main()
