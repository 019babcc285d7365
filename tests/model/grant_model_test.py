#!/usr/bin/env python3
"""Searches grant_model.py as a whole, and without each of its rules, where it has to find something."""
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../tools")]
import case_report  # noqa: E402
import grant_model  # noqa: E402


class GrantModel(unittest.TestCase):
    def test_nothing_breaks_with_all_rules(self):
        states, found = grant_model.search()
        self.assertIsNone(found)
        self.assertGreater(states, 200)

    # Otherwise the rule is not needed, or the model is blind.
    def test_something_breaks_without_each_rule(self):
        for rule, (why, setting) in grant_model.RULES.items():
            with self.subTest(rule, why=why):
                self.assertIsNone(grant_model.search(setting)[1])
                self.assertIsNotNone(grant_model.search(setting, [rule])[1], why)


if __name__ == "__main__":
    case_report.main()
