"""`python stage.py --check` and `--bench`: what they print, and their exit codes."""

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from parent import PACKAGE

from orchestra_stages import check
from orchestra_stages.declare import Column, Declaration, column_of

INPUTS = ", inputs={'x': ('f32', [4])}"
BOTH = INPUTS + ", outputs={'y': ('f32', [4])}"


def stage(declared, body):
    return f"import orchestra\n\n@orchestra.stage(batch=8{declared})\ndef f(x):\n    {body}\n"


def by_hand(script, *arguments):
    """Exit code, output and errors of `python stage.py`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "stage.py")
        file.write_text(script)
        env = {**os.environ, "PYTHONPATH": str(PACKAGE), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, str(file), *arguments]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env)
    return done.returncode, done.stdout, done.stderr


class Check(unittest.TestCase):
    def says(self, script, *arguments, code=0, stdout="", stderr=""):
        ended, said, errors = by_hand(script, "--check", *arguments)
        whole = f"{script}\n{said}\n{errors}"
        self.assertEqual(ended, code, whole)
        self.assertTrue(said.startswith(stdout), whole)
        self.assertIn(stderr, errors, whole)
        if not stderr:
            self.assertEqual(errors, "", whole)

    def test_a_stage_says_what_it_takes_gives_and_costs(self):
        lines = "f takes x float32[4] for each row\nf gives y float32[4] for each row\n8 rows of zeros take "
        self.says(stage(BOTH, "return {'y': 2 * x}"), stdout=lines)

    def test_what_it_takes_may_be_said_and_what_it_gives_is_told(self):
        self.says(
            stage("", "return {'y': x.sum(axis=1)}"),
            "x=int64:4",
            stdout='declare outputs={"y": ("int64", [])}\nf takes x int64[4] for each row\nf gives y int64[] ',
        )
        self.says(
            stage("", "return {'y': [len(one) for one in x], 'z': [one + '!' for one in x]}"),
            "x=text",
            stdout='declare outputs={"y": ("int64", []), "z": "text"}\nf takes x text for each row\n'
            "f gives y int64[], z text ",
        )
        self.says(
            stage(", each=True, outputs={'n': ('i64', [])}", "return {'n': len(x)}"),
            "x=list",
            stdout="f takes x list for each row\nf gives n int64[] for each row\n",
        )
        self.says(
            stage("", "return {'y': [one.shape[0] for one in x]}"),
            "x=picture",
            stdout='declare outputs={"y": ("int64", [])}\nf takes x picture for each row\n',
        )
        self.says(
            stage(
                ", outputs={'p': 'picture', 'b': 'bytes', 'l': 'labels'}",
                "return {'p': x, 'b': [b''] * 8, 'l': [[]] * 8}",
            ),
            "x=picture",
            stdout="f takes x picture for each row\nf gives p picture, b bytes, l labels for each row\n",
        )

    def test_one_of_several_is_named(self):
        both = stage(BOTH, "return {'y': x}") + stage(INPUTS, "return {'z': x}").replace("def f", "def g")
        self.says(both, code=1, stderr="it has the stages f, g: name one, ")
        self.says(both, "nope", code=1, stderr="there is no function `nope`; there are: f, g")
        self.says(both, "g", stdout='declare outputs={"z": ("float32", [4])}\ng takes x')

    def test_what_is_wrong_is_said(self):
        for declared, body, why in [
            (
                "",
                "return {'y': x}",
                "ValueError: say what `x` is: --check x=float32:3,32,32, or =text, =bytes, =list, =pic",
            ),
            (
                BOTH,
                "return {'y': x[:, :3]}",
                "ValueError: output `y` of 8 rows must have the shape [8, 4], and has [8, 3]",
            ),
            (
                BOTH,
                "return {'y': x[:-1]}",
                "ValueError: output `y` of 8 rows must have the shape [8, 4], and has [7, 4]",
            ),
            (BOTH, "return {'y': x.astype('i8')}", 'is declared as float32, and is int64: use .astype("float32")'),
            (BOTH, "return {'z': x}", "ValueError: it must give a dict of ['y'], and gave ['z']"),
            (BOTH, "return x", "it must give a dict of ['y'], and gave ndarray"),
            (BOTH, "return {'y': x / (1 // 0)}", "ZeroDivisionError: integer division or modulo by zero (stage.py:5)"),
            (INPUTS + ", each=True", "return {'y': x}", "declare `outputs` in the decorator"),
        ]:
            self.says(stage(declared, body), code=1, stderr=why)
        self.says(stage(BOTH, "return {'y': x}"), "z=text", code=1, stderr="`f` has no input `z`; inputs: x")

    def test_the_first_rows_of_a_source_are_shown_and_a_sink_is_left_alone(self):
        source = "import orchestra\n\n@orchestra.source(columns={'n': 'i64'}, key='n')\ndef rows():\n    "
        self.says(source + "yield from ({'n': n} for n in range(9**9))", stdout='0: {"n":0}\n1: {"n":1}\n')
        self.says(
            source + "return [{'n': 7}, {'m': 1}]", code=1, stdout='7: {"n":7}\n', stderr="row 1: the row has no `n`"
        )
        self.says(source + "return []", code=1, stderr="LookupError: rows yields no row")
        self.says(source + "raise KeyError('x')", code=1, stderr="KeyError: 'x' (stage.py:5)")
        sink = "\n@orchestra.sink\ndef store(rows, part):\n    1 / 0\n"
        whole = source + "return [{'n': 1}]\n" + sink
        self.says(whole, "store", stdout="store is a sink, which is not called here")
        self.says(whole, "rows", stdout='1: {"n":1}\nrows yields the rows above')
        self.says(whole, code=1, stderr="it has the functions rows, store: name one")
        for arguments, code, says in [
            (["--help"], 0, "python stage.py --check [NAME] [INPUT=TYPE ..]"),
            (["check"], 1, "there is no check; write --check, --bench or --help"),
            (["--check", "--fast"], 1, "there is no --fast; "),
            (["--bench", "rows"], 1, "`rows` is a source: --bench measures stages"),
            (["other", "words"], 0, ""),
        ]:
            ended, said, errors = by_hand(whole, *arguments)
            self.assertEqual(
                (ended, says in said + errors, bool(said + errors)), (code, True, bool(says)), said + errors
            )
        ended, said, _ = by_hand("import argparse\n" + whole + "\nprint('own')", "--help")
        self.assertEqual((ended, said), (0, "own\n"))

    def test_a_stage_may_reject_zeros(self):
        rejects = stage(BOTH, "raise orchestra.ItemError(2, 'zeros')")
        self.says(rejects, stderr="stage.py: ItemError: row 2: zeros (stage.py:5)")

    def test_a_script_that_fails_behind_its_stage_fails(self):
        fails = stage(BOTH, "return {'y': x}") + "1 / 0\n"
        self.says(fails, code=1, stdout="f takes x", stderr="ZeroDivisionError")


class Bench(unittest.TestCase):
    def test_each_size_has_its_rate_and_the_declared_one_is_marked(self):
        code, said, errors = by_hand(stage(BOTH, "return {'y': 2 * x}").replace("batch=8", "batch=6"), "--bench")
        self.assertEqual((code, errors), (0, ""), said)
        head, names, *rows, best = said.splitlines()
        self.assertEqual(head, "f on made-up rows; the way to and from a worker is not in it")
        self.assertEqual(names.split(), ["batch", "rows/s", "ms", "per", "call"])
        sizes = [int(row.split()[0]) for row in rows]
        self.assertEqual(sizes, [1, 2, 4, 6, 8, 16, 32, 64, 128, 256])
        self.assertEqual([row.split()[0] for row in rows if row.endswith("  declared")], ["6"])
        self.assertRegex(best, r"^batch=\d+ is the smallest within 5% of the fastest$")

    def bench(self, code, dtype="float32", each=False):
        outputs = [column_of("y", ("f64", []))]
        declaration = Declaration("f", [Column("x", dtype, [2])], outputs, None, False, each, code)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            check.bench(check.Trial(declaration, {"x": declaration.inputs[0]}), largest=8, seconds_per_size=0.0)
        return [line.split() for line in said.getvalue().splitlines()[2:]]

    def test_the_best_size_is_that_of_the_most_rows_in_a_second(self):
        clock = [0.0]

        def waits(x):  # As long for one row as for four, and twice as long for eight.
            clock[0] += 0.02 * -(-len(x) // 4)
            return {"y": [0.0] * len(x)}

        with mock.patch.object(check.time, "perf_counter", lambda: clock[0]):
            *rows, best = self.bench(waits)
        self.assertEqual([row[:2] for row in rows], [["1", "50"], ["2", "100"], ["4", "200"], ["8", "200"]])
        self.assertEqual(best[0], "batch=4")

    def test_it_stops_where_memory_ends(self):
        def fails(x):
            if len(x) > 2:
                raise MemoryError
            return {"y": [0.0] * len(x)}

        rows = self.bench(fails)
        self.assertEqual([row[0] for row in rows[:3]] + rows[2][1:], ["1", "2", "4", "out", "of", "memory"])

    def test_another_error_ends_it(self):
        code, _, errors = by_hand(stage(BOTH, "raise orchestra.ItemError(0, 'made up')"), "--bench")
        self.assertEqual(code, 1)
        self.assertIn("ItemError: row 0: made up", errors)

    def test_rows_are_made_up_by_type(self):
        inputs = {name: column_of(name, (name, [None, 3])) for name in ("f16", "u8", "bool")}
        declaration = Declaration("f", [], [], None, False, False, print)
        trial = check.Trial(declaration, {**inputs, "t": "text", "b": "bytes", "l": "list", "p": "picture"})
        made = trial.made_up(5)
        for name in inputs:
            self.assertEqual((made[name].shape, made[name].dtype), ((5, 1, 3), inputs[name].dtype))
            self.assertGreater(made[name].max(), 0)
        self.assertEqual({type(made[name][4]).__name__ for name in "tblp"}, {"str", "bytes", "list", "ndarray"})


if __name__ == "__main__":
    unittest.main()
