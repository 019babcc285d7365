#!/usr/bin/env python3
"""That the comparison notices what is slower, and nothing else; and what figures.py makes of runs."""
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.realpath(__file__))
sys.dont_write_bytecode = True
sys.path[:0] = [HERE, os.path.join(HERE, "../tools")]

import case_report  # noqa: E402
import compare  # noqa: E402
import figures  # noqa: E402
import guest  # noqa: E402
import plots  # noqa: E402


def run(soft_us=28.0, raw_us=14.0, soft_gib=2.0, raw_gib=2.5, at=None, others=0.1, ucx_us=None):
    lines = [("pull_p50", 8, "tryst_soft", soft_us, "us"), ("pull_p50", 8, "limit_socket", raw_us, "us"),
             ("pull_p50", 8, "ucx_tcp", raw_us * 1.2 if ucx_us is None else ucx_us, "us"),
             ("delivery", 1 << 20, "tryst_soft", soft_gib, "GiB/s"),
             ("delivery", 1 << 20, "limit_socket", raw_gib, "GiB/s")]
    out = [{"figure": f, "size_bytes": n, "system": s, "value": v, "unit": u, "others": others}
           for f, n, s, v, u in lines]
    return out if at is None else [dict(line, at="%06d" % at, commit="c") for line in out]


def history(runs=20):
    draw = random.Random(3)
    out = []
    for i in range(runs):
        pace = draw.uniform(0.5, 3)  # The machine's: everything is slower alike.
        noise = draw.uniform(0.8, 1.3)
        out += run(28 * pace * noise, 14 * pace, 2 / pace / noise, 2.5 / pace, at=i)
    return out


def failed(new, past):
    return [name for name, *_, is_slow in compare.compare(new, past)[0] if is_slow]


class CompareTest(unittest.TestCase):
    def test_a_slow_machine_is_no_regression(self):
        for pace in (0.3, 1, 5):
            self.assertEqual(failed(run(28 * pace, 14 * pace, 2 / pace, 2.5 / pace), history()), [])

    def test_a_slow_path_is_one_in_times_and_in_rates(self):
        self.assertEqual(failed(run(soft_us=28 * 3), history()), ["pull_p50 8 B: tryst_soft"])
        self.assertEqual(failed(run(soft_gib=2.0 / 3), history()), ["delivery 1 MiB: tryst_soft"])

    def test_a_reference_that_is_quicker_here_makes_nobody_slower(self):
        self.assertEqual(failed(run(raw_us=14 / 5, ucx_us=17), history()), [])
        self.assertEqual(failed(run(raw_us=14, ucx_us=17 / 5), history()), [])
        self.assertEqual(failed(run(raw_us=14 / 5, ucx_us=17 / 5), history()), ["pull_p50 8 B: tryst_soft"])

    def test_a_reference_without_a_history_has_no_say(self):
        past = [line for line in history() if line["system"] != "ucx_tcp"]
        self.assertEqual(failed(run(soft_us=28 * 3, ucx_us=999), past), ["pull_p50 8 B: tryst_soft"])
        self.assertEqual(failed(run(ucx_us=0.01), past), [])

    def test_the_best_round_counts(self):
        disturbed = [dict(line, value=line["value"] * 9, min=line["value"], max=line["value"] * 99)
                     if line["system"] == "tryst_soft" and line["unit"] == "us" else line for line in run()]
        self.assertEqual(failed(disturbed, history()), [])

    def test_of_a_busy_machine_only_processor_time_is_judged(self):
        def busy(cpu, at=None):
            cost = [{"figure": "cpu_per_gib", "size_bytes": 1 << 20, "system": s, "value": v, "unit": "s", "others": 1.5}
                    for s, v in (("tryst_soft", cpu), ("limit_socket", 0.4))]
            return run(soft_us=999, others=1.5, at=at) + [dict(one, at="%06d" % at, commit="c") if at is not None else one
                                                          for one in cost]
        past = [line for at in range(5) for line in busy(0.5, at)]
        self.assertEqual(failed(busy(0.6), past), [])
        self.assertEqual(len(failed(busy(1.5), past)), 1)

    def test_faster_is_fine(self):
        self.assertEqual(failed(run(soft_us=5, soft_gib=20), history()), [])

    def test_only_the_last_twenty_count(self):
        slow_past = [dict(line, value=line["value"] * 100) if line["system"] == "tryst_soft" and line["unit"] == "us"
                     else line for line in history(30)]
        recent = [dict(line, at="9" + line["at"]) for line in history(20)]
        self.assertEqual(failed(run(soft_us=28 * 3), slow_past), [])
        self.assertEqual(len(failed(run(soft_us=28 * 3), slow_past + recent)), 1)

    def test_too_little_history_judges_nothing_and_says_so(self):
        judged, unknown = compare.compare(run(), history(2))
        self.assertEqual((judged, len(unknown)), ([], 2))

    def test_the_program_fails_for_a_seeded_slow_entry(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, name) for name in ("new.json", "history.jsonl")]
            for path, lines in zip(paths, (run(), history())):
                with open(path, "w") as file:
                    file.writelines(json.dumps(line) + "\n" for line in lines)
            program = [sys.executable, os.path.join(HERE, "compare.py"), *paths]
            good = subprocess.run(program, stdout=subprocess.PIPE, text=True)
            self.assertEqual((good.returncode, good.stdout.splitlines()[-1]), (0, "2 passed, 0 failed, 0 skipped"))
            bad = subprocess.run(program + ["--seed-slow", "tryst_soft", "3"], stdout=subprocess.PIPE, text=True)
            self.assertEqual((bad.returncode, bad.stdout.splitlines()[-1]), (1, "0 passed, 2 failed, 0 skipped"))

    def test_the_history_that_is_kept_is_sound(self):
        path = os.path.join(HERE, "history.jsonl")
        for line in figures.read(path):
            self.assertLessEqual(line.get("min", line["value"]), line["value"], line)
            self.assertGreaterEqual(line.get("max", line["value"]), line["value"], line)
            self.assertTrue(line["commit"] and line["machine"] and line["at"] and line["unit"], line)


class FiguresTest(unittest.TestCase):
    def test_lines_have_the_median_and_the_extremes(self):
        taken = figures.Taken()
        for value in (3.0, 1.0, 2.0):
            taken.add("ucx_shm", [("pull_p50", 8, value, "us")])
        self.assertEqual(taken.lines(), [{"figure": "pull_p50", "system": "ucx_shm", "size_bytes": 8, "value": 2.0,
                                          "unit": "us", "min": 1.0, "max": 3.0, "runs": 3}])
        self.assertIn("| ucx_shm | 2 <sub>1–3</sub> |", figures.markdown(taken.lines()))

    def test_a_guests_report_becomes_lines(self):
        text = """noise
one channel_pull 8 B, 3 rounds, ours and perftest's in us: median 20 and 5 (4.000), best 1 and 2 (0.5) [19 20 30 | 4 5 6]
pair write_bw 65536 B, 3 rounds, ours and perftest's in MB/s: median 1 and none (none), best 1 and  (none) [1073.741824 | ]
"""
        lines = guest.lines_of(text)
        self.assertEqual([(l["figure"], l["system"], l["guest"], l["value"], l["min"], l["max"]) for l in lines],
                         [("pull_p50", "tryst_rxe", "one", 20, 19, 30), ("pull_p50", "limit_perftest", "one", 10, 8, 12),
                          ("write_bandwidth", "tryst_rxe", "pair", 1, 1, 1)])

    def test_a_plot_is_xml_with_a_bar_for_each_system(self):
        import xml.etree.ElementTree
        rows = [dict(line, min=line["value"], max=line["value"]) for line in run() if line["unit"] == "us"]
        svg = xml.etree.ElementTree.fromstring(plots.bars("a < b", rows))
        self.assertEqual(len(svg.findall("{http://www.w3.org/2000/svg}rect")), 1 + len(rows))


if __name__ == "__main__":
    case_report.main()
