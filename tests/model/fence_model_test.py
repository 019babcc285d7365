#!/usr/bin/env python3
"""Searches fence_model.py in small settings, and without each of its rules, where it has to find something."""
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../tools")]
import case_report  # noqa: E402
import fence_model  # noqa: E402


class FenceModel(unittest.TestCase):
    def holds(self, setting, at_least):
        states, found = fence_model.search(setting)
        self.assertIsNone(found)
        self.assertGreater(states, at_least)

    def test_two_fetches_an_epoch_and_a_cancel(self):
        self.holds((2, 1, 0, 1), 30_000)

    def test_two_fetches_a_carrier_and_a_cancel(self):
        self.holds((2, 0, 1, 1), 15_000)

    def test_an_epoch_and_a_carrier(self):
        self.holds((1, 1, 1, 0), 25_000)

    # Otherwise the rule is not needed, or the model is blind.
    def test_something_breaks_without_each_rule(self):
        for rule, (why, setting) in fence_model.RULES.items():
            with self.subTest(rule, why=why):
                self.assertIsNotNone(fence_model.search(setting, [rule])[1], why)


if __name__ == "__main__":
    case_report.main()
