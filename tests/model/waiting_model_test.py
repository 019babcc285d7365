#!/usr/bin/env python3
"""Searches waiting.pml in small settings, and without each of its rules, where it has to find something."""
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../tools")]
import case_report  # noqa: E402
import waiting_model  # noqa: E402


@unittest.skipIf(waiting_model.missing(), waiting_model.missing())
class WaitingModel(unittest.TestCase):
    def holds(self, kind, at_least, **settings):
        result = waiting_model.search(kind, settings)
        self.assertIsNone(result.found, result.text[-4000:])
        self.assertTrue(result.complete)
        self.assertGreater(result.states, at_least)

    def test_safe_with_a_break_and_a_cancel(self):
        self.holds(waiting_model.SAFETY, 100_000, BREAKS=1, CANCELS=1, LATE=1)

    def test_safe_with_a_lost_message_and_a_cancel(self):
        self.holds(waiting_model.SAFETY, 10_000, LOSSES=1, CANCELS=1, LATE=1)

    def test_nothing_waits_for_ever_after_a_break(self):
        self.holds(waiting_model.LIVENESS, 5000, BREAKS=1)

    def test_nothing_waits_for_ever_after_a_loss(self):
        self.holds(waiting_model.LIVENESS, 5000, LOSSES=1)

    # Without a rule the model must find a violation. Otherwise the rule is not needed, or the model
    # is blind.
    def test_something_breaks_without_each_rule(self):
        for rule, (kind, settings, why) in waiting_model.RULES.items():
            with self.subTest(rule, why=why):
                self.assertIsNotNone(waiting_model.search(kind, settings, [rule]).found, why)


if __name__ == "__main__":
    case_report.main()
