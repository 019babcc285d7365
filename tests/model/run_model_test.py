#!/usr/bin/env python3
"""Searches run_model.py as a whole, and without each of its rules, where it has to find something."""
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../tools")]
import case_report  # noqa: E402
import run_model  # noqa: E402


class RunModel(unittest.TestCase):
    def test_nothing_breaks_with_all_rules(self):
        states, found = run_model.search()
        self.assertIsNone(found)
        self.assertGreater(states, 100_000)

    # Otherwise the rule is not needed, or the model is blind.
    def test_something_breaks_without_each_rule(self):
        for rule, why in run_model.RULES.items():
            with self.subTest(rule, why=why):
                self.assertIsNotNone(run_model.search([rule])[1], why)


if __name__ == "__main__":
    case_report.main()
