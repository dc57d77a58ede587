"""The decorator: what it understands, and what it says of the rest."""

import unittest
from typing import Any

import numpy as np

from orchestra_stages import ItemError, stage
from orchestra_stages.declare import Column, column_of, declarations
from orchestra_stages.script import pick


class Declarations(unittest.TestCase):
    def setUp(self):
        declarations.clear()

    def refused(self, code: Any, **keys: Any) -> str:
        with self.assertRaises(TypeError) as caught:
            stage(**keys)(code)
        return str(caught.exception)

    def test_a_decorated_function_stays_what_it_is(self):
        def twice(x, scale=2):
            return {"y": x * scale}

        self.assertIs(stage(twice), twice)
        self.assertIs(stage(batch=8, gpu=True)(twice), twice)
        bare, full = declarations
        self.assertEqual((bare.inputs, bare.outputs, bare.batch), ([Column("x", None, None)], None, None))
        self.assertEqual((full.name, full.batch, full.gpu, full.each), ("twice", 8, True, False))

    def test_a_class_is_declared_by_its_call(self):
        @stage(outputs={"y": ("f32", [])})
        class Sum:
            def __call__(self, a, b):
                pass

        (declared,) = declarations
        self.assertEqual(([one.name for one in declared.inputs], declared.code), (["a", "b"], Sum))

    def test_columns(self):
        for of, expected in [
            (("float32", [3, None]), Column("y", "float32", [3, None])),
            (("f16", ()), Column("y", "float16", [])),
            ((np.int64, [2]), Column("y", "int64", [2])),
            ("u8", Column("y", "uint8", None)),
            (np.float64, Column("y", "float64", None)),
            ("text", Column("y", "text", [])),
            (str, Column("y", "text", [])),
            (("text", []), Column("y", "text", [])),
            ("picture", Column("y", "picture", [])),
            ("labels", Column("y", "labels", [])),
            (bytes, Column("y", "bytes", [])),
            (("bytes", ".png"), Column("y", "bytes", [], format="png")),
            (
                {"a": "text", "p": "picture"},
                Column("y", "list", [], [Column("a", "text", []), Column("p", "picture", [])]),
            ),
        ]:
            self.assertEqual(column_of("y", of), expected)

    def test_the_planner_says_outputs_by_short_names(self):
        said = {"name": "y", "dtype": "list", "columns": [{"name": "a", "dtype": "i16", "shape": [None]}]}
        self.assertEqual(Column.from_json(said), Column("y", "list", [], [Column("a", "int16", [None])]))
        for of in ("text", "picture", "labels", "bytes"):
            self.assertEqual(Column.from_json({"name": "t", "dtype": of}), Column("t", of, []))

    def test_what_is_no_type_or_shape_is_refused(self):
        for of, why in [
            (("complex64", [4]), "`y` cannot be complex64; types are float32, float16, "),
            (("list", [4]), "`y` cannot be list"),
            (("picture", [4, 4, 3]), "`y` cannot be picture"),
            ("image", "and of outputs text, bytes, picture, labels and dicts of columns"),
            (("f32", [-1]), "`y`: [-1] is no shape of a row: a list of sizes, or of None"),
            (("f32", [1.5]), "`y`: [1.5] is no shape of a row"),
        ]:
            with self.assertRaises(TypeError) as caught:
                column_of("y", of)
            self.assertIn(why, str(caught.exception))

    def test_an_output_without_a_shape_is_refused_with_what_to_write(self):
        for outputs in ({"y": "float32"}, {"l": {"n": "text", "y": "f32"}}):
            why = self.refused(lambda x: x, outputs=outputs)
            self.assertIn('say the shape of `y`, too: "y": ("float32", []) is one number', why)

    def test_what_is_no_function_of_inputs_is_refused(self):
        def yields(x):
            yield x

        async def awaits(x):
            return x

        self.assertIn("yields: it may yield with each=True alone", self.refused(yields))
        for outputs in (None, {"y": ("f32", [])}, {"y": {"n": "text"}, "z": "text"}):
            why = self.refused(yields, each=True, outputs=outputs)
            self.assertIn('yields: what it yields are the rows of one list, outputs={"parts": {"box": ', why)
        self.assertIn("awaits: it must return what it gives", self.refused(awaits))
        self.assertIn("`drops` goes with each=True", self.refused(lambda x: 0, drops=True))
        own = "each input must be an argument of its own"
        self.assertIn(own, self.refused(lambda: 0))
        self.assertIn(own, self.refused(lambda *x: 0))
        self.assertIn(own, self.refused(lambda x, **more: 0))
        self.assertIn("may name these alone: x", self.refused(lambda x: 0, inputs={"z": ("f32", [])}))
        self.assertIn("only arrays are declared as inputs", self.refused(lambda x: 0, inputs={"x": "text"}))
        self.assertEqual(declarations, [])

    def test_a_stage_is_picked_by_its_name(self):
        with self.assertRaisesRegex(LookupError, "no function has @orchestra.stage"):
            pick()
        for name in ("f", "g"):
            code = eval("lambda x: 0")
            code.__name__ = name
            stage(code)
        self.assertEqual(pick("g").name, "g")
        for name, why in (
            (None, "it has the stages f, g: name one, "),
            ("h", "there is no stage `h`; there are: f, g"),
        ):
            with self.assertRaisesRegex(LookupError, why):
                pick(name)

    def test_an_item_error_has_the_number_of_a_row(self):
        error = ItemError(np.int64(3), "blank")
        self.assertEqual((error.row, error.why, str(error)), (3, "blank", "row 3: blank"))
        with self.assertRaises(TypeError):
            ItemError(1.5, "no number of a row")


if __name__ == "__main__":
    unittest.main()
