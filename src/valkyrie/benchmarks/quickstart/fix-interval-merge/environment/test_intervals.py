import unittest

from intervals import gaps, merge, total_length


class IntervalsTest(unittest.TestCase):
    def test_overlapping_intervals_become_one(self):
        self.assertEqual(merge([(1, 4), (2, 6)]), [(1, 6)])

    def test_touching_intervals_become_one(self):
        self.assertEqual(merge([(1, 3), (3, 5)]), [(1, 5)])

    def test_an_interval_inside_another(self):
        self.assertEqual(merge([(1, 9), (2, 3)]), [(1, 9)])

    def test_shared_integers_count_once(self):
        self.assertEqual(total_length([(0, 4), (2, 6)]), 6)

    def test_gaps(self):
        self.assertEqual(gaps([(2, 4), (6, 7)], 0, 10), [(0, 2), (4, 6), (7, 10)])


if __name__ == "__main__":
    unittest.main()
