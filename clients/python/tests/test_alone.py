"""Rows alone: which differences are found, which are let pass, and how much time they may take."""

import unittest

import numpy as np

from orchestra_stages.alone import AloneCheck, differs
from orchestra_stages.errors import DATA, DIFFERS_ALONE, BatchError

X = np.arange(8, dtype="float32").reshape(4, 2) + 1


def compare(function, check=None):
    """Compares the rows of X, of which each is called alone with `function`."""
    check = check or AloneCheck(["y"], is_gpu=False, is_off=False)
    check.compare([function(X)], len(X), 1.0, lambda row, n: [function(X[row : row + n])])
    return check


class Comparisons(unittest.TestCase):
    def test_a_function_of_rows_passes(self):
        check = compare(lambda x: x * 2)
        self.assertEqual((check.n_compared, check.is_off), (1, False))

    def test_a_mean_over_the_batch_is_found(self):
        with self.assertRaises(BatchError) as caught:
            compare(lambda x: x - x.mean(axis=0))
        self.assertEqual(caught.exception.kind, DIFFERS_ALONE)
        why = (
            "its output `y` has -3.0 at [0] in its batch, and 0.0 alone (item 0 of a batch of 4): the items of a batch"
        )
        self.assertIn(why, str(caught.exception))

    def test_a_function_that_is_random_or_counts_is_left_out(self):
        generator = np.random.default_rng(0)
        check = compare(lambda x: generator.random(len(x)))
        self.assertTrue(check.is_off)
        self.assertFalse(check.is_due(4, 1.0))

    def test_a_function_that_gives_the_same_by_chance_once_is_left_out(self):
        for seed in range(64):
            generator = np.random.default_rng(seed)

            def mirrored(x, generator=generator):
                return np.where(generator.random((len(x), 1)) < 0.5, x, x[:, ::-1])

            compare(mirrored)

    def test_a_row_that_fails_alone_tells_nothing_but_a_shape_does(self):
        def fails(x):
            if len(x) == 1:
                raise error
            return x

        error = KeyError("alone")
        compare(fails)
        error = BatchError("output `y` must have another shape", DATA)
        with self.assertRaisesRegex(BatchError, "another shape alone"):
            compare(fails)

    def test_it_begins_with_another_row_each_time(self):
        check = AloneCheck(["y"], is_gpu=False, is_off=False)
        firsts = []
        for _ in range(5):
            seen = []

            def call(row, n, seen=seen):
                seen.append(row)
                return [X[row : row + n]]

            check.compare([X], len(X), 0.0, call)
            firsts.append(seen[0])
        self.assertEqual(firsts, [0, 1, 2, 3, 0])

    def test_it_is_due_for_the_first_batches_and_a_256th_of_the_time_of_others(self):
        check = AloneCheck(["y"], is_gpu=False, is_off=False)
        self.assertFalse(check.is_due(1, 1.0))
        self.assertTrue(check.is_due(2, 1.0))
        check.seconds = 0.5
        self.assertFalse(check.is_due(2, 1.0))
        self.assertTrue(check.is_due(2, 125.0))
        self.assertFalse(AloneCheck(["y"], is_gpu=False, is_off=True).is_due(2, 1.0))


class Differences(unittest.TestCase):
    def test_rounding_is_let_pass(self):
        one = np.array([1.0, 2.0], "float32")
        self.assertIsNone(differs(one, one * np.float32(1.0001), False))
        self.assertIsNotNone(differs(one, one * np.float32(1.001), False))
        self.assertIsNone(differs(one, one * np.float32(1.001), True))
        half = one.astype("float16")
        self.assertIsNone(differs(half, half * np.float16(1.005), False))

    def test_one_element_in_a_thousand_may_differ_but_not_by_nan(self):
        many = np.ones(2000, "float32")
        other = many.copy()
        other[5] = 7
        self.assertIsNone(differs(many, other, False))
        other[5] = np.nan
        self.assertIsNotNone(differs(many, other, False))
        self.assertIsNone(differs(other, other, False))

    def test_texts_lists_and_shapes(self):
        self.assertIsNone(differs("a", "a", False))
        self.assertEqual(differs("a", "b", False), "'a' in its batch, and 'b' alone")
        self.assertEqual(differs([("a",)], [], False), "1 rows in its batch, and 0 alone")
        self.assertEqual(differs([("a",)], [("b",)], False), "'a' in its batch, and 'b' alone")
        self.assertIn("the shape [1] in its batch", differs(np.zeros(1), np.zeros(2), False))
        self.assertIsNone(differs(np.int64(3), np.int64(3), False))


if __name__ == "__main__":
    unittest.main()
