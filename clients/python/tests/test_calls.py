"""Calls: what a function may return, what is converted, and which rows fail."""

import enum
import unittest

import numpy as np

from orchestra_stages import ItemError
from orchestra_stages.calls import StageCall
from orchestra_stages.declare import DTYPES, Declaration, column_of
from orchestra_stages.errors import DATA, TOO_LARGE, WRONG_ROWS, BatchError


def call(code, outputs, each=False, drops=False):
    columns = [column_of(name, of) for name, of in outputs.items()]
    return StageCall(Declaration("f", [], columns, None, False, each, code, drops), columns)


def give(value, of, n_rows=3):
    """The only output of a function that returns `value`, whatever it is given."""
    (array,) = call(lambda: {"y": value}, {"y": of})(n_rows, {})
    return array


class PictureOf:
    """A picture as Pillow has it: an array that does not say what its numbers stand for."""

    def __init__(self, mode):
        self.mode = mode

    def __array__(self, dtype=None, copy=None):
        return np.zeros([2, 2, 3][: 3 if self.mode in ("RGB", "HSV") else 2], "u1")


class Arrays(unittest.TestCase):
    def test_a_declared_array_is_not_copied(self):
        array = np.ones([3, 2], "float32")
        self.assertIs(give(array, ("f32", [2])), array)
        self.assertEqual(give([[1], [2], [3]], ("f32", [1])).dtype, "float32")
        self.assertEqual(give(np.ones([3, 7], "i2"), ("i64", [None])).tolist(), [[1] * 7] * 3)

    def test_a_class_is_made_once(self):
        class Counts:
            made = 0

            def __init__(self):
                Counts.made += 1

            def __call__(self):
                return {"y": [0, 0, 0]}

        counts = call(Counts, {"y": ("i64", [])})
        counts(3, {}), counts(3, {})
        self.assertEqual(Counts.made, 1)

    def test_another_shape_fails_the_batch_and_a_row_alone_fails_as_data(self):
        wrong = np.zeros([3, 5], "float32")
        with self.assertRaises(BatchError) as caught:
            give(wrong, ("f32", [4]))
        why = "output `y` of 3 rows must have the shape [3, 4], and has [3, 5]"
        self.assertEqual((str(caught.exception), caught.exception.kind), (why, WRONG_ROWS))
        for value in (wrong[:1], [[1, 2], [3]]):
            with self.assertRaises(BatchError) as caught:
                give(value, ("f32", [4]), 1)
            self.assertEqual(caught.exception.kind, DATA)

    def test_only_a_dict_of_the_outputs_will_do(self):
        for code, why in [
            (lambda: {"z": 0}, r"it must give a dict of \['y'\], and gave \['z'\]"),
            (lambda: [0], "and gave list"),
        ]:
            with self.assertRaisesRegex(ValueError, why):
                call(code, {"y": ("f32", [])})(3, {})

    def test_a_number_that_the_type_cannot_hold_fails_its_row(self):
        for given, dtype, row in [
            (np.array([1.0, 2.5, 3.0]), "i64", 1),
            (np.array([0, 1, 300]), "u8", 2),
            (np.array([0.0, 1e300, 0.0]), "f32", 1),
            (np.array([0, 0, 2**53 + 1]), "f64", 2),
            (np.array([2.0**60, 0, 0]), "i64", 0),
            ([0, 2**60 + 1, 0], "f64", 1),
            ([0.5, 2**60 + 1, 0.5], "f64", 1),
        ]:
            with self.assertRaises(ItemError) as caught:
                give(given, (dtype, []))
            self.assertEqual(caught.exception.row, row)
            self.assertIn("which cannot hold", caught.exception.why)

    def test_arrays_of_a_list_are_converted_by_the_same_rule_whatever_their_shapes(self):
        for rows in ([np.ones(2, "i8")] * 3, [np.ones(n, "i8") for n in (1, 2, 3)]):
            with self.assertRaisesRegex((ItemError, ValueError), r'is int64: use .astype\("float32"\)'):
                give(rows, ("f32", [None]))
            each = call(lambda x, rows=rows: {"y": rows[x]}, {"y": ("f32", [None])}, each=True)
            each(3, {"x": [0, 1, 2]})
            self.assertEqual(sorted(each.failed), [0, 1, 2])

    def test_numbers_that_it_holds_are_converted(self):
        self.assertEqual(give(np.array([1.0, 2.0, 3.0]), ("u8", [])).tolist(), [1, 2, 3])
        self.assertTrue(np.isinf(give(np.array([np.inf, 0, 0]), ("f32", []))[0]))
        self.assertEqual(give(np.array([0, 0, 2**53], ">i8"), ("i64", []))[2], 2**53)
        with self.assertRaisesRegex(ValueError, r'and is int64: use .astype\("float32"\)'):
            give(np.array([1, 2, 3]), ("f32", []))

    def test_a_masked_number_fails_its_row(self):
        masked = np.ma.array([[1.0, 2.0], [3.0, 4.0]], mask=[[0, 0], [0, 1]])
        for value in (masked, list(masked)):
            with self.assertRaises(ItemError) as caught:
                give(value, ("f64", [2]), 2)
            self.assertEqual(caught.exception.row, 1)
        self.assertEqual(give(masked.filled(0), ("f64", [2]), 2)[1, 1], 0)


class TextsAndLists(unittest.TestCase):
    def test_texts(self):
        class Own(str, enum.Enum):
            A = "a"

        self.assertEqual(give(["x", "", "ä"], "text").tolist(), ["x", "", "ä"])
        self.assertEqual([type(one) for one in give([Own.A] * 3, "text")], [str] * 3)
        self.assertEqual(give(np.array(["p", "q", "r"]), "text").tolist(), ["p", "q", "r"])

    def test_what_is_no_text_fails_its_row(self):
        for value, row, why in [
            (["a", 7, "c"], 1, "declared as text, and is int, not str"),
            (["a", "b", "\ud800"], 2, "is no text: "),
            (["a", "b", None], 2, "is NoneType"),
        ]:
            with self.assertRaises(ItemError) as caught:
                give(value, "text")
            self.assertEqual(caught.exception.row, row)
            self.assertIn(why, caught.exception.why)

    def test_another_number_of_texts_fails_the_batch(self):
        with self.assertRaisesRegex(BatchError, "must be a list of as many texts, and is list of 2"):
            give(["a", "b"], "text")
        with self.assertRaisesRegex(BatchError, "and is str of 3"):
            give("abc", "text")

    def test_lists(self):
        of = {"box": ("f32", [2]), "name": "text"}
        found = give([[{"name": "a", "box": [1, 2]}], [], [{"name": "b", "box": [3, 4]}] * 2], of)
        self.assertEqual([len(rows) for rows in found], [1, 0, 2])
        box, name = found[0][0]
        self.assertEqual((box.tolist(), box.dtype, name), ([1, 2], "float32", "a"))

    def test_a_row_that_is_no_dict_of_the_columns_fails_its_item(self):
        for rows, why in [
            ([[], [{"nam": "a"}], []], r"must be a dict of \['name'\], and is \['nam'\]"),
            ([[], ["a"], []], "and is str"),
            ([[], None, []], r"must be a list of dicts of \['name'\], and is NoneType"),
            ([[], [{"name": 3}], []], "output `name` is declared as text, and is int"),
        ]:
            with self.assertRaisesRegex(ItemError, "row 1: .*" + why):
                give(rows, {"name": "text"})

    def test_bytes_pictures_and_labels(self):
        small, large = np.arange(12).reshape(2, 2, 3), np.arange(6, dtype="u1").reshape(2, 3)
        pictures = give([small, large, [[7]]], "picture")
        self.assertEqual(
            [(one.dtype, one.shape) for one in pictures], [("u1", s) for s in [(2, 2, 3), (2, 3, 1), (1, 1, 1)]]
        )
        self.assertEqual((pictures[0].tolist(), pictures[1].ravel().tolist()), (small.tolist(), [*range(6)]))
        self.assertEqual(give(np.zeros([3, 4, 5, 1], "u1"), "picture").shape, (3, 4, 5, 1))
        kept = bytearray(b"ab")
        found = give([b"", kept, memoryview(b"\0")], "bytes").tolist()
        kept[0] = 0
        self.assertEqual(found, [b"", b"ab", b"\0"])
        label = {"label": "cat", "class": np.uint8(3), "score": 0.5}
        found = give([[label, {**label, "score": 0.25}], [], [{**label, "score": np.float64("nan")}]], "labels")
        self.assertEqual(
            [(name, int(place), float(score)) for name, place, score in found[0]], [("cat", 3, 0.5), ("cat", 3, 0.25)]
        )
        self.assertEqual((found[1], np.isnan(found[2][0][2])), ([], True))
        self.assertEqual(give([PictureOf("RGB"), PictureOf("L"), PictureOf("L")], "picture")[1].shape, (2, 2, 1))
        of = {"p": "picture", "b": "bytes", "l": "labels"}
        rows = give([[], [{"p": large, "b": b"x", "l": [label]}], []], of)[1]
        self.assertEqual((rows[0][0].shape, rows[0][1], rows[0][2][0][0]), ((2, 3, 1), b"x", "cat"))

    def test_what_is_no_picture_bytes_or_labels_fails_its_row(self):
        label = {"label": "a", "class": 0, "score": 1}
        for of, value, why in [
            (
                "picture",
                np.zeros([2, 2, 4], "u1"),
                r"is a picture: an array \[height, width, 3\].*; it is of shape \[2, 2, 4\]",
            ),
            ("picture", np.zeros([0, 2, 3], "u1"), r"it is of shape \[0, 2, 3\]"),
            ("picture", None, "it is NoneType"),
            ("labels", None, r"must be a list of dicts of .*, and is NoneType"),
            ("picture", np.full([1, 1, 3], 256), r"cannot hold 256 at \[0, 0, 0\]"),
            ("picture", np.full([1, 1, 3], 0.5), r"cannot hold 0.5"),
            ("picture", np.ma.array(np.zeros([1, 1, 1], "u1"), mask=True), "is masked"),
            ("picture", np.ones([2, 2], bool), "is a picture of uint8, and is bool"),
            ("picture", PictureOf("P"), r'is a picture of mode P: give picture.convert\("RGB"\)'),
            ("picture", PictureOf("HSV"), "is a picture of mode HSV"),
            ("bytes", "text", "declared as bytes, and is str"),
            ("bytes", np.zeros(2), r"and is ndarray: use \.tobytes\(\)"),
            ("labels", [{"label": "a"}], r"must be a dict of \['label', 'class', 'score'\], and is \['label'\]"),
            ("labels", [{**label, "class": -1}], "a class is a number from 0, and this one is -1"),
            ("labels", [label, {**label, "score": 2}], "labels come best first, and 1.0 stands before 2.0"),
        ]:
            good = {"picture": np.zeros([1, 1], "u1"), "bytes": b"", "labels": []}[of]
            with self.assertRaisesRegex(ItemError, "row 1: .*" + why):
                give([good, value, good], of)
            each = call(lambda x: {"y": [good, value, good][x]}, {"y": of}, each=True)
            (found,) = each(3, {"x": [0, 1, 2]})
            self.assertRegex(each.failed.pop(1)[1], why)
            self.assertEqual((each.failed, len(found)), ({}, 3))


class Each(unittest.TestCase):
    def test_rows_are_called_with_their_values_and_joined(self):
        of = {"n": ("i64", []), "t": "text", "l": {"a": ("f32", [1])}}
        each = call(lambda x, s: {"n": len(s or ""), "t": str(x), "l": [{"a": x}] * int(x[0])}, of, each=True)
        n, t, rows = each(2, {"x": np.array([[0.0], [2.0]], "float32"), "s": [None, "abc"]})
        self.assertEqual((n.tolist(), n.dtype, t.tolist()), ([0, 3], "int64", ["[0.]", "[2.]"]))
        self.assertEqual([len(one) for one in rows], [0, 2])

    def test_an_exception_is_that_of_its_row(self):
        def fails(x):
            if x == 1:
                raise KeyError("seven")
            if x == 2:
                raise ItemError(0, "rejected")
            return {"y": x}

        each = call(fails, {"y": ("i64", [])}, each=True)
        self.assertEqual(each(2, {"x": [0, 5]})[0].tolist(), [0, 5])
        self.assertEqual(each(4, {"x": [4, 1, 2, 5]})[0][[0, 3]].tolist(), [4, 5])
        self.assertEqual([*each.failed], [1, 2])
        self.assertEqual([why.split(" (")[0] for _, why in each.failed.values()], ["KeyError: 'seven'", "rejected"])
        each(1, {"x": [0]})
        self.assertEqual(each.failed, {})
        each.raises = True
        with self.assertRaisesRegex(KeyError, "seven"):
            each(1, {"x": [1]})

    def test_each_text_and_each_content_is_checked_by_itself(self):
        class Own(str):
            pass

        texts = call(lambda x: {"t": x}, {"t": "text"}, each=True)
        given = texts(7, {"x": ["a", "\u00e4", Own("o"), "\ud800", 5, b"a", ""]})[0].tolist()
        self.assertEqual((given, [*texts.failed]), (["a", "\u00e4", "o", "", "", "", ""], [3, 4, 5]))
        self.assertEqual({type(one) for one in given}, {str})
        contents = call(lambda x: {"c": x}, {"c": "bytes"}, each=True)
        given = contents(3, {"x": [b"a\0", bytearray(b"b"), "c"]})[0].tolist()
        self.assertEqual((given, [*contents.failed]), ([b"a\0", b"b", b""], [2]))
        named = call(lambda x: {"u": x}, {"t": "text"}, each=True)
        named(1, {"x": ["a"]})
        self.assertEqual(named.failed[0][1].split(" (")[0], "ValueError: it must give a dict of ['t'], and gave ['u']")
        contents.room = texts.room = 4
        texts(2, {"x": ["abcde", "abc"]})
        self.assertEqual([(row, kind) for row, (kind, _) in texts.failed.items()], [(0, TOO_LARGE)])
        with self.assertRaises(BatchError) as raised:
            contents(2, {"x": [b"abc", b"de"]})
        self.assertEqual(raised.exception.kind, TOO_LARGE)

    def test_a_number_is_held_by_the_rule_of_arrays_and_fails_where_they_do(self):
        edges = [0, 2**7, 2**15, 2**31, 2**53, 2**63, 65504, 65520, 1e39, 0.1, 2.5, float("nan"), float("inf")]
        near = [sign * (number + step) for number in edges for step in (-1, 0, 1) for sign in (1, -1)]
        numbers = [*near, True, False, np.bool_(True), np.array(3), np.array([3]), [3], "3", None]
        numbers += [kind(number) for kind in (np.float16, np.float32, np.float64) for number in (0.1, 7, 65504, np.inf)]
        kinds = (np.uint8, np.int16, np.int64, np.uint64)
        numbers += [kind(number) for kind in kinds for number in (0, 200 % np.iinfo(kind).max, np.iinfo(kind).max)]
        for dtype in DTYPES:
            of = (dtype, [])
            batch = call(lambda x: {"y": [x] if not hasattr(x, "ndim") else np.asarray(x)[None]}, {"y": of})
            each = call(lambda x: {"y": x}, {"y": of}, each=True)
            rows = call(lambda x: {"y": [{"n": x}]}, {"y": {"n": of}}, each=True)
            for number in numbers:
                with self.subTest(dtype=dtype, number=repr(number)):
                    try:
                        expected = batch(1, {"x": number})[0].tobytes()
                    except Exception:
                        expected = None
                    (found,), (listed,) = each(1, {"x": [number]}), rows(1, {"x": [number]})
                    self.assertEqual(None if each.failed else found.tobytes(), expected)
                    self.assertEqual(None if rows.failed else listed[0][0][0].tobytes(), expected)

    def test_rows_of_several_shapes_are_kept_as_they_are(self):
        sizes = [1, 2, 0, 2]
        each = call(lambda x: {"y": np.full(x, x)}, {"y": ("f64", [None])}, each=True)
        batch = call(lambda x: {"y": [np.full(n, n) for n in x]}, {"y": ("f64", [None])})
        for function in (each, batch):
            (found,) = function(4, {"x": sizes})
            self.assertEqual([one.tolist() for one in found], [[n] * n for n in sizes])
            self.assertEqual(function(2, {"x": [3, 3]})[0].shape, (2, 3))

    def test_each_value_is_that_of_its_row_whatever_is_written_over_later(self):
        number = np.zeros(1)
        kept = {"array": np.zeros(2), "bytes": bytearray(2), "list": [0, 0], "number": number, "row": {}}
        views = {
            "number": lambda: number.reshape([]),
            "array": lambda: kept["array"],
            "bytes": lambda: memoryview(kept["bytes"]),
            "list": lambda: kept["list"],
        }
        for shape in ([2], [None]):
            of = {"number": ("f64", []), "array": ("f64", shape), "bytes": ("u8", shape), "list": ("i64", shape)}

            def refilled(x):
                for name in views:
                    kept[name][0] = x
                return {name: view() for name, view in views.items()}

            def one_dict(x):
                for n in range(3):
                    refilled(x + n)
                    kept["row"].update((name, view()) for name, view in views.items())
                    yield kept["row"]

            for found in call(refilled, of, each=True)(3, {"x": [1, 2, 3]}):
                self.assertEqual([np.ravel(row)[0] for row in found], [1, 2, 3])
            (parts,) = call(one_dict, {"parts": of}, each=True)(2, {"x": [1, 5]})
            for first, rows in zip((1, 5), parts):
                self.assertEqual([[np.ravel(of)[0] for of in row] for row in rows], [[first + n] * 4 for n in range(3)])

    def test_a_masked_number_fails_its_row_wherever_it_stands(self):
        def masked(x):
            return np.ma.masked_array([7.0, 8.0], [False, x == 1])

        def parts(x):
            yield {"y": masked(x)}

        one = call(lambda x: {"y": np.ma.masked if x == 1 else 2.0}, {"y": ("f64", [])}, each=True)
        for shape in ([2], [None]):
            of = {"y": ("f64", shape)}
            for each in (call(lambda x: {"y": masked(x)}, of, each=True), call(parts, {"p": of}, each=True), one):
                each(3, {"x": [0, 1, 2]})
                self.assertRegex(each.failed.pop(1)[1], r"^output `y` is masked at \[1?\] of its row: say what stands")
                self.assertEqual(each.failed, {})

    def test_a_row_without_end_fails_as_too_large_as_soon_as_it_is(self):
        seen = []

        def endless(x):
            while True:
                seen.append(x)
                yield {"t": "x" * 100}
                if x != 1:
                    return

        each = call(endless, {"p": {"t": "text"}}, each=True)
        each.room = 1000
        (found,) = each(3, {"x": [0, 1, 2]})
        self.assertEqual(([len(rows) for rows in found], each.failed[1][0], len(seen)), ([1, 0, 1], TOO_LARGE, 13))
        each.room = 199  # Each of these fits, and both do not: the parent halves the batch.
        with self.assertRaises(BatchError) as caught:
            each(2, {"x": [0, 2]})
        self.assertEqual(caught.exception.kind, TOO_LARGE)

    def test_what_a_generator_yields_are_the_rows_of_its_list(self):
        def parts(x):
            for n in range(x):
                if n == 3:
                    raise KeyError("three")
                yield {"n": n, "t": f"{n} of {x}"}

        of = {"parts": {"n": ("i64", []), "t": "text"}}
        for code in (parts, lambda x: parts(x), lambda x: {"parts": parts(x)}):
            each = call(code, of, each=True)
            (found,) = each(3, {"x": [2, 0, 3]})
            self.assertEqual(
                [[text for _, text in rows] for rows in found],
                [["0 of 2", "1 of 2"], [], ["0 of 3", "1 of 3", "2 of 3"]],
            )
            each(2, {"x": [1, 4]})
            self.assertRegex(each.failed[1][1], "^KeyError: 'three'")

    def test_none_drops_a_row_where_the_function_says_that_it_may(self):
        of = {"n": ("i64", []), "v": ("f32", [None]), "t": "text", "l": {"a": "text"}}
        made = {"v": [0.5, 1.5], "t": "kept", "l": [{"a": "x"}]}
        odd = call(lambda x: {"n": x, **made} if x % 2 else None, of, each=True, drops=True)
        n, v, t, rows = odd(4, {"x": [0, 1, 2, 3]})
        self.assertEqual(odd.dropped, [0, 2])
        self.assertEqual((n[[1, 3]].tolist(), v.shape, t[3], rows[1]), ([1, 3], (4, 2), "kept", [("x",)]))
        n, v, t, rows = odd(2, {"x": [0, 2]})
        self.assertEqual((odd.dropped, n.shape, v.shape, t.tolist()), ([0, 1], (2,), (2, 0), ["", ""]))
        odd(1, {"x": [1]})
        self.assertEqual(odd.dropped, [])
        forgets = call(lambda x: None, of, each=True)
        forgets(1, {"x": [1]})
        self.assertRegex(forgets.failed[0][1], "^ValueError: it gave None; .* declared with drops=True")

    def test_no_memory_is_no_fault_of_a_row(self):
        def fails(x):
            raise MemoryError

        with self.assertRaises(MemoryError):
            call(fails, {"y": ("f64", [])}, each=True)(2, {"x": [1, 2]})


if __name__ == "__main__":
    unittest.main()
