"""Integers, frames and values against bytes that are written out from docs/guide/worker-protocol.md."""

import unittest

import numpy as np
import parent

from orchestra_stages.declare import DTYPES, Column
from orchestra_stages.values import ValueReader, done_outputs, packed
from orchestra_stages.wire import Load, NoSense, Reader, Row, Run, ints, text


class Integers(unittest.TestCase):
    def test_they_take_the_shortest_form(self):
        for number, expected in [
            (0, "00"),
            (250, "fa"),
            (251, "fbfb00"),
            (65535, "fbffff"),
            (65536, "fc00000100"),
            (2**32 - 1, "fcffffffff"),
            (2**32, "fd0000000001000000"),
            (2**64 - 1, "fdffffffffffffffff"),
        ]:
            self.assertEqual(ints(number).hex(), expected)
            self.assertEqual(Reader(bytes.fromhex(expected)).integer(), number)

    def test_longer_forms_are_read(self):
        self.assertEqual(Reader(bytes.fromhex("fd0700000000000000")).integer(), 7)

    def test_a_text_stands_behind_its_bytes(self):
        self.assertEqual(text("ä"), b"\x02\xc3\xa4")
        self.assertEqual(text("x" * 251)[:3], b"\xfb\xfb\x00")
        self.assertEqual(text("\ud800"), b"\x01?")  # Of a message of an error, say.
        self.assertEqual(Reader(b"\x02\xc3\xa4").text(), "ä")


class Rows(unittest.TestCase):
    def test_a_column_that_is_not_there_is_told_with_those_that_are(self):
        with self.assertRaisesRegex(KeyError, "no column 'at'; the row has 'p.at', 'word'"):
            Row({"p.at": 1, "word": "a"})["at"]


class Frames(unittest.TestCase):
    def test_load(self):
        spec = b'{"outputs": [{"name": "y", "dtype": "f32", "shape": [4, null]}], "values": [], "loop": null}'
        frame = bytes([0, len(spec)]) + spec
        frame += bytes([1, 2]) + b"G1"  # A GPU.
        frame += bytes([3, 1, 1, 16, 8, 2])  # Three threads, a stream, padded to 16, 8 rows, two slots.
        frame += (
            b"\x01\x01x\x04\x02\x00\x03\x01\x01\x40\x03"  # Input x, u8 [3, open], open batch, from 64, 3 bytes each.
        )
        frame += b"\x01\x00"  # One output, of open shape.
        frame += b"\xfb\x00\x10\x00\x09"
        load = Load(Reader(frame))
        self.assertEqual(load.outputs, [Column("y", "float32", [4, None])])
        self.assertEqual((load.gpu, load.threads, load.slots), ("G1", 3, 2))
        expected = {"name": "x", "dtype": "uint8", "shape": [3, None], "offset": 64, "row_bytes": 3}
        self.assertEqual([vars(span) for span in load.inputs], [expected])
        self.assertEqual((load.places, load.input_slot_bytes, load.output_slot_bytes), ([None], 4096, 0))
        self.assertEqual(load.answer_bytes, 9)

    def test_run(self):
        expected = {"batch": 7, "slot": 2, "output_slot": 3, "first": 4, "rows": 5, "values": None}
        self.assertEqual(vars(Run(Reader(bytes([1, 7, 1, 2, 3, 4, 5])))), expected)
        run = Run(Reader(bytes([2, 7, 1, 2, 3, 4, 1, 1, 9])))
        self.assertEqual(vars(run), {**expected, "rows": 1, "values": b"\x09"})
        for first in (Run, Load):
            with self.assertRaises(NoSense):
                first(Reader(b"\x09"))

    def test_a_frame_that_is_cut_is_no_frame(self):
        frame = parent.load([], [parent.span("x", "f32", [4], 0, 16)])
        Load(Reader(frame))
        for cut in range(len(frame)):
            with self.assertRaises((IndexError, ValueError), msg=str(cut)):
                Load(Reader(frame[:cut]))


class Values(unittest.TestCase):
    def value(self, data, ty="text"):
        reader = ValueReader(data)
        value = reader.value(ty)
        self.assertEqual(reader.at, len(data))
        return value

    def test_each_kind_becomes_its_type_of_python(self):
        tensor = b"\x00\x01x\x03\x01\x02\x08" + np.array([1, -2], "<i4").tobytes()
        np.testing.assert_array_equal(self.value(tensor), np.array([1, -2], "int32"))
        self.assertEqual(self.value(b"\x00\x01x\x02\x00\x08" + (5).to_bytes(8, "little")), 5)
        labels = b"\x01\x01\x03cat\x09\x00\x00\x00\x3f"
        self.assertEqual(self.value(labels), [{"label": "cat", "class": 9, "score": 0.5}])
        self.assertEqual(self.value(b"\x02\x02\xc3\xa4"), "ä")
        self.assertEqual(self.value(b"\x02\xfb\x2c\x01" + b"y" * 300), "y" * 300)
        self.assertEqual(self.value(b"\x03\x02\xc3\xa4"), b"\xc3\xa4")
        self.assertIsNone(self.value(b"\x05\x04name"))

    def test_rows_of_a_list_are_dicts_without_the_place_of_a_crop(self):
        ty = {"list": [{"name": "a", "ty": "text"}, {"name": "at", "ty": "placement"}]}
        data = b"\x04\x02" + b"\x02\x02\x01p\x05\x00" + b"\x02\x05\x00\x05\x00"
        self.assertEqual(self.value(data, ty), [{"a": "p"}, {"a": None}])
        self.assertEqual(self.value(data, {"optional": ty}), [{"a": "p"}, {"a": None}])

    def test_rows_become_columns(self):
        declared = [{"name": "a", "ty": "text"}, {"name": "b", "ty": {"bytes": "any"}}]
        data = b"\x02\x01p\x03\x01q" + b"\x05\x01a\x03\x00"
        self.assertEqual(ValueReader(data).rows(declared, 2), {"a": ["p", None], "b": [b"q", b""]})


class Outputs(unittest.TestCase):
    def test_an_array_has_its_type_and_shape(self):
        for number, dtype in enumerate(DTYPES):
            array = np.ones([2, 3], dtype)
            expected = bytes([4, number, 2, 2, 3, array.nbytes]) + array.tobytes()
            self.assertEqual(done_outputs(4, array), [expected])

    def test_texts_are_bytes_behind_their_numbers(self):
        texts = np.array(["ä", ""], dtype=object)
        self.assertEqual(
            done_outputs(0, np.array([b"\xff", b""], object)), [b"\x00\x04\x01\x09\x09\x01\0\0\0\xff\0\0\0\0"]
        )
        self.assertEqual(done_outputs(0, texts), [b"\x00\x04\x01\x0a\x0a" + b"\x02\0\0\0\xc3\xa4" + b"\0\0\0\0"])
        ragged = np.empty(2, dtype=object)
        ragged[0], ragged[1] = np.array([7, 8], "uint8"), np.array([], "uint8")
        self.assertEqual(done_outputs(3, ragged), [b"\x03\x04\x02\x01\x02\x02\x07\x08", b"\x03\x04\x02\x01\x00\x00"])

    def test_lists_have_neither_names_nor_types(self):
        rows = [("a", np.array([1, 2], "uint8")), ("", np.array([], "uint8"))]
        self.assertEqual(packed(rows), b"\x02" + b"\x01a\x02\x02\x01\x02" + b"\x00\x00\x00")
        self.assertEqual(
            packed([(b"\xff", np.zeros([1, 1, 3], "u1"))]), b"\x01" + b"\x01\xff" + b"\x01\x01\x03\x03\0\0\0"
        )
        self.assertEqual(packed([([("x",)],)]), b"\x01\x01\x01x")


if __name__ == "__main__":
    unittest.main()
