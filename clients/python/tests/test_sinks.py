"""Sinks: what the decorator understands, and what their process makes of parts."""

import json
import math
import sys
import unittest
from typing import Any, List

import numpy as np
from parent import Parent, integer, text
from test_worker import Scripts

from orchestra_stages import sink
from orchestra_stages.sinks import sinks
from orchestra_stages.writing import rows_of

PART, BYTES, END = 0, 1, 2
DONE, FAILED = 1, 2

SCRIPT = """
import orchestra

@orchestra.sink
class Write:
    def __init__(self):
        self.parts = []

    def __call__(self, rows, part):
        if part == 7:
            raise KeyError("no table")
        self.parts.append(part)
        with open(f"{part}.txt", "w") as out:
            print(self.parts, [(row["item"], row["n"]) for row in rows], file=out)
"""
COLUMNS = [{"name": "n", "ty": {"tensor": {"name": "n", "dtype": "i64", "row": []}}}]


class Declarations(unittest.TestCase):
    def setUp(self):
        sinks.clear()

    def test_a_decorated_function_or_class_stays_what_it_is(self):
        def write(rows, part, more=1):
            pass

        class Write:
            def __call__(self, rows, part):
                pass

        self.assertIs(sink(write), write)
        self.assertIs(sink()(Write), Write)
        self.assertEqual([one.name for one in sinks], ["write", "Write"])

    def test_what_cannot_write_a_part_is_refused(self):
        async def awaits(rows, part):
            pass

        def yields(rows, part):
            yield

        for code, why in [
            (lambda rows: None, "called with two arguments, rows and part"),
            (lambda rows, part, more: None, "called with two arguments"),
            (awaits, "must write before it returns"),
            (yields, "must write before it returns"),
        ]:
            with self.assertRaisesRegex(TypeError, why):
                sink(code)
        self.assertEqual(sinks, [])


class Rows(unittest.TestCase):
    def row(self, values: List[Any], types: List[Any]) -> Any:
        columns = [{"name": f"c{at}", "ty": ty} for at, ty in enumerate(types)]
        line = json.dumps({"item": "a", "index": 3, "source": "s", "values": values})
        (row,) = rows_of(line.encode() + b"\n", columns)
        self.assertEqual((row.pop("item"), row.pop("index"), row.pop("source")), ("a", 3, "s"))
        return list(row.values())

    def test_values_are_those_of_python(self):
        number, list_of = {"tensor": {}}, {"list": [{"name": "t", "ty": "text"}, {"name": "n", "ty": {"tensor": {}}}]}
        labels = [{"label": "cat", "class": 1, "score": 0.5}]
        values = ["NaN", 7, 0.5, "00ff", None, [["x", 1], ["y", "NaN"]], labels]
        types = ["text", number, number, {"bytes": "png"}, {"optional": number}, list_of, "labels"]
        text, whole, half, data, missing, rows, found = self.row(values, types)
        self.assertEqual((text, whole, half, data, missing, found), ("NaN", 7, 0.5, b"\0\xff", None, labels))
        self.assertEqual(rows[0], {"t": "x", "n": 1})
        self.assertTrue(math.isnan(rows[1]["n"]))
        (special,) = self.row(["-Infinity"], [number])
        self.assertEqual(special, -math.inf)

    def test_tensors_are_arrays(self):
        said = {"dtype": "f32", "shape": [2, 2], "data": [[1, "NaN"], ["Infinity", 0.1]]}
        (array,) = self.row([said], [{"optional": {"tensor": {}}}])
        np.testing.assert_array_equal(array, np.array([[1, np.nan], [np.inf, 0.1]], np.float32))
        self.assertEqual(array.dtype, np.float32)
        (empty,) = self.row([{"dtype": "u8", "shape": [0, 3], "data": []}], [{"tensor": {}}])
        self.assertEqual((empty.dtype, empty.shape), (np.uint8, (0, 3)))


class Writing(Scripts):
    def write_parts(self, script: str, parts: List[int]) -> Any:
        """What the process of a script answers to parts of two rows."""
        path = self.write("write.py", script)
        with Parent([sys.executable, "-m", "orchestra_stages", "write", str(path)]) as parent:
            for part in parts:
                lines = [{"item": f"{part}.{n}", "index": n, "source": "s", "values": [n]} for n in range(2)]
                content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
                parent.send(integer(PART) + integer(part) + text(json.dumps(COLUMNS)))
                for begin in range(0, len(content), 50):
                    parent.send(integer(BYTES) + text(content[begin : begin + 50]))
                parent.send(integer(END))
                frame = parent.receive()
                kind = frame.integer()
                yield kind, frame.text() if kind == FAILED else None

    def test_a_class_is_made_once_and_takes_one_part_after_the_other(self):
        script = SCRIPT.replace('f"{part}.txt"', f'f"{self.folder}/{{part}}.txt"')
        self.assertEqual(list(self.write_parts(script, [0, 1])), [(DONE, None)] * 2)
        self.assertEqual((self.folder / "1.txt").read_text(), "[0, 1] [('1.0', 0), ('1.1', 1)]\n")

    def test_an_error_is_told_and_the_process_goes_on(self):
        script = SCRIPT.replace('f"{part}.txt"', f'f"{self.folder}/{{part}}.txt"')
        answers = list(self.write_parts(script, [7, 8]))
        self.assertEqual(answers, [(FAILED, "KeyError: 'no table' (write.py:11)"), (DONE, None)])

    def test_a_script_without_a_sink_is_told(self):
        why = "LookupError: no function has @orchestra.sink(..)"
        self.assertEqual(list(self.write_parts("import orchestra\n", [0])), [(FAILED, why)])


if __name__ == "__main__":
    unittest.main()
