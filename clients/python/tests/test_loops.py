"""Loops: which rows go on, what they take of the round before, and what they give."""

import unittest

import numpy as np
from test_calls import call

from orchestra_stages.loops import LoopCall

NEWTON = {"x": ("f64", []), "residual": ("f64", [1])}


def newton(x, a):
    x = (x + a / x) / 2
    return {"x": x, "residual": np.abs(x * x - a)[:, np.newaxis]}


def loop(code, outputs, rounds, feed, until=None, each=False):
    return LoopCall(call(code, outputs, each), {"rounds": rounds, "feed": feed, "until": until})


class Loops(unittest.TestCase):
    def test_each_row_has_what_it_has_alone(self):
        a = np.array([1.0, 2.0, 400.0, 9.0])
        of_all = loop(newton, NEWTON, 60, [["x", "x"]], ["residual", 1e-3, True])
        x, residual, rounds = of_all(4, {"x": a, "a": a})
        self.assertEqual((rounds.tolist(), rounds.dtype), ([by_hand(number) for number in a], "int64"))
        for row in range(4):
            alone = of_all(1, {"x": a[row : row + 1], "a": a[row : row + 1]})
            self.assertEqual([x[row], residual[row], rounds[row]], [array[0] for array in alone])
        self.assertTrue((residual <= 1e-3).all())

    def test_rows_that_have_ended_are_not_called_again(self):
        seen = []

        def count(n, of, t):
            seen.append((n.tolist(), of.tolist(), t))
            return {"n": n + 1, "left": of - n - 1}

        counts = loop(count, {"n": ("i64", []), "left": ("i64", [])}, 3, [["n", "n"]], ["left", 1.0, False])
        inputs = {"n": np.zeros(3, "int64"), "of": np.array([2, 1, 9]), "t": ["a", "b", "c"]}
        n, left, rounds = counts(3, inputs)
        self.assertEqual((n.tolist(), left.tolist(), rounds.tolist()), ([2, 1, 3], [0, 0, 6], [2, 1, 3]))
        expected = [([0, 0, 0], [2, 1, 9], ["a", "b", "c"]), ([1, 1], [2, 9], ["a", "c"]), ([2], [9], ["c"])]
        self.assertEqual(seen, expected)

    def test_what_is_fed_is_no_memory_of_the_function(self):
        buffer = np.zeros(2)

        def next_one(x):
            with self.assertRaises(ValueError):
                x += 1
            buffer[:] = 0
            buffer[:] = x + 1
            return {"y": buffer}

        y, rounds = loop(next_one, {"y": ("f64", [])}, 3, [["x", "y"]])(2, {"x": frozen([5.0, 7.0])})
        self.assertEqual((y.tolist(), rounds.tolist()), ([8.0, 10.0], [3, 3]))

    def test_texts_are_fed_as_lists(self):
        def longer(text):
            return {"text": [one + "!" for one in text], "left": [3 - len(one) for one in text]}

        of = {"text": "text", "left": ("i64", [])}
        text, _, rounds = loop(longer, of, 9, [["text", "text"]], ["left", 0.0, True])(2, {"text": ["", "ab"]})
        self.assertEqual((text.tolist(), rounds.tolist()), (["!!!!", "ab!!"], [4, 2]))

    def test_what_is_no_number_never_ends_a_row(self):
        _, rounds = loop(lambda x: {"y": x * np.nan}, {"y": ("f64", [])}, 4, [["x", "y"]], ["y", 1.0, False])(
            1, {"x": np.zeros(1)}
        )
        self.assertEqual(rounds.tolist(), [4])

    def test_an_error_names_the_row_of_the_batch(self):
        def fails(x):
            if x == 0:
                raise KeyError("zero")
            return {"x": x - 1}

        fails = loop(fails, {"x": ("i64", [])}, 9, [["x", "x"]], ["x", -5.0, False], each=True)
        x, rounds = fails(3, {"x": np.array([9, 2, 10])})
        self.assertEqual((x[[0, 2]].tolist(), rounds.tolist(), [*fails.failed]), ([0, 1], [9, 3, 9], [1]))
        self.assertRegex(fails.failed[1][1], "^KeyError: 'zero'")

    def test_rows_that_end_with_several_shapes_keep_theirs(self):
        def count_down(x):
            return {"x": x - 1, "all": np.zeros([len(x), x[0]])}

        ends = loop(count_down, {"x": ("i64", []), "all": ("f64", [None])}, 5, [["x", "x"]], ["x", 0, True])
        self.assertEqual(ends(1, {"x": np.array([3])})[1].shape, (1, 1))
        ends.until = ["x", 1, True]
        found = ends(2, {"x": np.array([5, 2])})[1]
        self.assertEqual([one.shape for one in found], [(2,), (5,)])
        found = ends(3, {"x": np.array([2, 7, 3])})[1]
        self.assertEqual([one.shape[0] for one in found], [2, 3, 6])


def by_hand(a):
    x, rounds = a, 0
    while rounds == 0 or abs(x * x - a) > 1e-3:
        x, rounds = (x + a / x) / 2, rounds + 1
    return rounds


def frozen(numbers):
    array = np.array(numbers)
    array.flags.writeable = False
    return array


if __name__ == "__main__":
    unittest.main()
