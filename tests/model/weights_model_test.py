#!/usr/bin/env python3
"""Searches weights.pml in small settings, and without each of its rules, where it has to find what the rule is there for."""
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../tools")]
import case_report  # noqa: E402
import weights_model  # noqa: E402


@unittest.skipIf(weights_model.missing(), weights_model.missing())
class WeightsModel(unittest.TestCase):
    def holds(self, at_least, settings):
        result = weights_model.search(settings)
        self.assertIsNone(result.found, result.text[-4000:])
        self.assertTrue(result.complete)
        self.assertGreater(result.states, at_least)

    def test_a_seal_and_the_death_of_an_owner(self):
        self.holds(20_000, weights_model.SEALING)

    def test_a_rolling_activation_by_one_leader(self):
        self.holds(40_000, weights_model.ROLLING)

    def test_a_rolling_activation_by_two_leaders(self):
        self.holds(100_000, weights_model.TWO_ROLLING)

    def test_a_member_returns_in_a_barrier(self):
        self.holds(5_000, weights_model.ALONE)

    def test_a_member_lets_go_of_a_stage_for_another_version(self):
        self.holds(5_000, weights_model.LETTING_GO)

    # Without a rule the model must find a violation. Otherwise the rule is not needed, or the model is blind.
    def test_its_promise_breaks_without_each_rule(self):
        for rule, (promise, settings, why) in weights_model.RULES.items():
            with self.subTest(rule, why=why):
                self.assertEqual(weights_model.search(settings, [rule]).found, promise, why)


if __name__ == "__main__":
    case_report.main()
