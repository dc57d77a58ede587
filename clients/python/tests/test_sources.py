"""Sources: what the decorator understands, and what their process sends of each row."""

import json
import math
import sys
import unittest
from typing import Any

import numpy as np
from parent import Parent
from test_worker import Scripts

from orchestra_stages import source
from orchestra_stages.listing import item
from orchestra_stages.sources import sources

ROWS, DONE, FAILED = 0, 1, 2


class Declarations(unittest.TestCase):
    def setUp(self):
        sources.clear()

    def test_a_decorated_function_stays_what_it_is(self):
        def rows(limit=3):
            yield from range(limit)

        self.assertIs(source(rows), rows)
        self.assertIs(source(columns={"n": "i64"}, key="n")(rows), rows)
        bare, full = sources
        self.assertEqual((bare.name, bare.columns, bare.key), ("rows", None, None))
        self.assertEqual((full.columns, full.key), ({"n": "i64"}, "n"))

    def test_types_are_those_of_a_workflow_file(self):
        types = {
            "a": "i64",
            "b": "float32?",
            "c": ("float32", [2, 3]),
            "d": np.float64,
            "e": str,
            "f": "json",
            "g": ("f32", []),
        }
        source(columns=types)(lambda: [])
        expected = {"a": "i64", "b": "f32?", "c": "f32[2, 3]", "d": "f64", "e": "text", "f": "json", "g": "f32"}
        self.assertEqual(sources[0].columns, expected)
        for of in (("text", [3]), ("f32", [None]), ("f32", [0])):
            with self.assertRaisesRegex(TypeError, "`x` cannot be "):
                source(columns={"x": of})(lambda: [])

    def test_a_function_with_arguments_is_refused(self):
        async def awaits():
            pass

        for code in (lambda x: [], awaits):
            with self.assertRaisesRegex(TypeError, "a source takes no arguments"):
                source(code)


class Rows(unittest.TestCase):
    def setUp(self):
        sources.clear()

    def sent(self, row: Any, **keys: Any) -> Any:
        source(**keys)(lambda: [])
        name, content = item(sources[-1], 7, row)
        self.assertNotIn(b"#", content)
        self.assertLessEqual(len(content), 64 << 10)
        return name, json.loads(content)

    def test_a_row_is_json_under_its_number_or_its_key(self):
        row = {"id": "ä#1", "n": 2**70, "x": [0.1, None], "more": {"a": True}}
        self.assertEqual(self.sent(row), ("7", row))
        self.assertEqual(self.sent(row, key="id"), ("ä#1", row))
        self.assertEqual(self.sent({"id": np.int64(3)}, key="id"), ("3", {"id": 3}))

    def test_arrays_and_numbers_that_json_lacks(self):
        row = {"a": np.array([[1, 2]], np.float32), "b": np.float32(0.1), "c": [math.nan, np.inf], "d": -math.inf}
        expected = {"a": [[1.0, 2.0]], "b": float(np.float32(0.1)), "c": ["NaN", "Infinity"], "d": "-Infinity"}
        self.assertEqual(self.sent(row)[1], expected)

    def test_what_is_wrong_with_a_row_stands_in_its_place(self):
        circle: Any = {}
        circle["it"] = circle
        columns = {"columns": {"n": "i64"}}
        for row, keys, why in [
            (7, {}, "yields a int where a dict is expected"),
            (None, {}, "yields a NoneType"),
            ({"n": 1, "m": 2}, columns, "the row has `m`, which `columns` does not name"),
            ({"n": 1}, {"key": "id"}, "the row has no `id`"),
            ({"n": 1.5}, {"key": "n"}, "`n` is a float"),
            ({"n": True}, {"key": "n"}, "`n` is a bool"),
            ({"n": ""}, {"key": "n"}, "`n` cannot name an item"),
            ({"n": "a\0"}, {"key": "n"}, "`n` cannot name an item"),
            ({"n": "a" * 5000}, {"key": "n"}, "`n` cannot name an item"),
            ({"n": object()}, {}, "a object is no JSON: yield a text"),
            ({"n": b"#"}, {}, "a bytes is no JSON"),
            (circle, {}, "nested more than 100 deep"),
            ({"n": "\ud800"}, {}, "a text that is no Unicode"),
            ({"n": "x" * (64 << 10)}, {}, "at most 65536 are listed"),
        ]:
            name, said = self.sent(row, **keys)
            self.assertEqual(name, "row 7" if "key" in keys else "7")
            self.assertIn(why, said)


class Listing(Scripts):
    def listed(self, script: str) -> Any:
        """The rows and the end that the process of a script sends."""
        path, rows = self.write("rows.py", script), []
        with Parent([sys.executable, "-m", "orchestra_stages", "list", str(path)]) as parent:
            while True:
                frame = parent.receive()
                kind = frame.integer()
                if kind != ROWS:
                    return rows, (kind, frame.text() if kind == FAILED else None)
                for _ in range(frame.integer()):
                    rows.append((frame.text(), json.loads(frame.blob())))

    def test_all_rows_come_in_their_order_whatever_is_printed(self):
        rows, end = self.listed(
            "import orchestra\n@orchestra.source\ndef rows():\n"
            "    for n in range(20_000):\n        n % 1000 or print(n)\n        yield {'n': n}\n"
        )
        self.assertEqual(rows, [(str(n), {"n": n}) for n in range(20_000)])
        self.assertEqual(end, (DONE, None))

    def test_an_error_comes_behind_the_rows_before_it(self):
        rows, (kind, why) = self.listed(
            "import orchestra\n@orchestra.source\ndef rows():\n    yield {'n': 0}\n    raise KeyError('no table')\n"
        )
        self.assertEqual((len(rows), kind), (1, FAILED))
        self.assertEqual(why, "KeyError: 'no table' (rows.py:5)")

    def test_a_row_does_not_wait_for_the_next_one(self):
        path = self.write(
            "rows.py",
            "import orchestra, time\n@orchestra.source\ndef rows():\n    yield {'n': 0}\n    time.sleep(3600)\n",
        )
        with Parent([sys.executable, "-m", "orchestra_stages", "list", str(path)]) as parent:
            frame = parent.receive()
            self.assertEqual([frame.integer(), frame.integer(), frame.text()], [ROWS, 1, "0"])

    def test_a_script_without_a_source_is_told(self):
        _, (kind, why) = self.listed("import orchestra\n")
        self.assertEqual((kind, why), (FAILED, "LookupError: no function has @orchestra.source(..)"))


if __name__ == "__main__":
    unittest.main()
