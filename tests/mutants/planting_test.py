#!/usr/bin/env python3
"""planting.py: what a fault is, and how it is planted."""
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(ROOT, "tools")]

import case_report  # noqa: E402
import planting  # noqa: E402

BLOCK = """# A comment.

a_name
in folder/file.cc
by //folder:file_test --flag
- a == b
+ false
"""


def read(text):
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "some.mutants"), "w", encoding="utf-8") as file:
            file.write(text)
        return planting.read(folder)


def fault(old, new):
    return planting.Mutant(7, "it", "a.cc", [["//a:a_test"]], "", old, new)


class PlantingTest(unittest.TestCase):
    def planted(self, text, *faults):
        planted, refused = planting.plant(text, list(faults))
        self.assertTrue(planted.startswith(planting.PRELUDE))
        return planted[len(planting.PRELUDE):], refused

    def test_a_block_is_a_fault(self):
        (mutant,) = read(BLOCK)
        self.assertEqual((mutant.number, mutant.name, mutant.path), (1, "a_name", "folder/file.cc"))
        self.assertEqual(mutant.tests, [["//folder:file_test", "--flag"]])
        self.assertEqual((mutant.old, mutant.new), ("a == b", "false"))

    def test_a_block_that_lacks_something_is_wrong(self):
        for word in ("in", "by", "-", "+"):
            lines = [line for line in BLOCK.splitlines() if not line.startswith(word + " ")]
            with self.assertRaises(planting.Wrong):
                read("\n".join(lines))

    def test_two_of_one_name_are_wrong(self):
        with self.assertRaises(planting.Wrong):
            read(BLOCK + "\n" + BLOCK)

    def test_a_condition_has_both(self):
        self.assertEqual(self.planted("if (a == b) x();", fault("a == b", "false"))[0],
                         "if ((TrystMutant(7) ? (false) : (a == b))) x();")

    def test_statements_are_in_an_if(self):
        text, _ = self.planted("f();\ng();\nh();\n", fault("g();", ""))
        self.assertEqual(text.split(), "f(); { if (TrystMutant(7)) { } else { g(); } } h();".split())

    def test_the_new_text_may_say_where(self):
        self.assertEqual(self.planted("f(a, b);", fault("f(a, b);", "f(a, MUTANT ? 0 : b);"))[0],
                         "f(a, TrystMutant(7) ? 0 : b);")

    def test_line_breaks_do_not_count(self):
        self.assertEqual(self.planted("if (a &&\n    b->c(d)) e();", fault("a && b->c( d )", "a"))[1], {})

    def test_words_do_not_run_into_each_other(self):
        self.assertIn("it", self.planted("returnx;", fault("return x;", ""))[1])

    def test_text_that_is_not_there_or_there_twice_is_refused(self):
        self.assertEqual(self.planted("a;", fault("b;", ""))[1], {"it": "its text is there 0 times"})
        self.assertEqual(self.planted("b; b;", fault("b;", ""))[1], {"it": "its text is there 2 times"})

    def test_two_in_one_place_are_around_each_other(self):
        second = fault("a == b", "true")._replace(number=8, name="other")
        self.assertEqual(self.planted("a == b", fault("a == b", "false"), second)[0],
                         "(TrystMutant(8) ? (true) : ((TrystMutant(7) ? (false) : (a == b))))")

    def test_two_that_overlap_are_refused(self):
        second = fault("b", "c")._replace(number=8, name="other")
        self.assertEqual(self.planted("a == b", fault("a == b", "false"), second)[1], {"other": "it overlaps another fault"})


if __name__ == "__main__":
    case_report.main()
