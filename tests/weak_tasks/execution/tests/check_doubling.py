import unittest

from doubling import double


class DoublingTest(unittest.TestCase):
    def test_twice(self):
        self.assertEqual([double(number) for number in (0, 2, -7)], [0, 4, -14])
