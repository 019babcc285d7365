#!/usr/bin/env python3
"""planting.py: what a fault is, and how it is planted."""
import collections
import os
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(ROOT, "tools")]

import case_report  # noqa: E402
import judging  # noqa: E402
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

    def test_a_fault_that_ends_inside_a_statement_says_mutant(self):
        opening = BLOCK.replace("- a == b", "- if (a == b) {")
        with self.assertRaises(planting.Wrong):
            read(opening.replace("+ false", "+ if (false) {"))
        self.assertEqual(len(read(opening.replace("+ false", "+ if (a == b && !MUTANT) {"))), 1)
        with self.assertRaises(planting.Wrong):
            read(BLOCK.replace("- a == b", "- a(); b(c,").replace("+ false", "+ b(c,"))
        with self.assertRaises(planting.Wrong):
            read(BLOCK.replace("- a == b", "- void A() { b();").replace("+ false", "+ void A() {"))

    def test_a_condition_that_is_left_out_has_another_in_its_place(self):
        with self.assertRaises(planting.Wrong):
            read(BLOCK.replace("+ false", "+"))
        self.assertEqual(read(BLOCK.replace("- a == b", "- a();").replace("+ false", "+"))[0].new, "")

    def test_two_of_one_name_are_wrong(self):
        with self.assertRaises(planting.Wrong):
            read(BLOCK + "\n" + BLOCK)

    def test_a_condition_has_both(self):
        self.assertEqual(self.planted("if (a == b) x();", fault("a == b", "false"))[0],
                         "if ((TrystMutant(7) ? (false) : (a == b))) x();")

    def test_statements_are_in_an_if(self):
        text, _ = self.planted("f();\ng();\nh();\n", fault("g();", ""))
        self.assertEqual(text.split(), "f(); { if (TrystMutant(7)) { } else { g(); } } h();".split())

    def test_half_a_statement_is_refused(self):
        self.assertIn("inside", self.planted("return a ==\n    b * 2;", fault("b * 2;", "b;"))[1]["it"])
        self.assertEqual(self.planted("if (a) // why\n  b(); else c();", fault("c();", ""))[1], {})

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

    def test_edits_are_inside_of_each_other(self):
        edits = [planting.Edit(4, 9, "(", ")"), planting.Edit(0, 10, "{", "}"), planting.Edit(0, 0, "p", ""),
                 planting.Edit(4, 5, "<", ">"), planting.Edit(4, 9, "[", "]")]
        self.assertEqual(planting.apply_edits("f(a(b, cd));"[:4] + "e + f;", edits), "p{f(a([(<e> + f)];}")

    def test_a_generated_fault_yields_to_a_described_one(self):
        generated = Generated("g1", [planting.Edit(0, 6, "(", ")")])
        replaces = fault("b == c", "MUTANT || b")
        self.assertEqual(planting.plant("a == b == c", [replaces], [generated])[1], {"g1": "it overlaps a fault that is described"})
        inside = Generated("g2", [planting.Edit(5, 6, "<", ">")])
        text, refused = self.planted("a == b;", fault("a == b", "false"))
        text, refused = planting.plant("a == b;", [fault("a == b", "false")], [inside])
        self.assertEqual(refused, {})
        self.assertTrue(text.endswith("(TrystMutant(7) ? (false) : (a == <b>));"), text)

    def test_what_is_passed_is_told_by_every_process_even_before_a_crash(self):
        source = planting.PRELUDE + """
            int main(int argc, char**) {
              if (TrystMutant(3)) abort();
              if (argc > 1 && TrystMutant(5)) return 1;
              if (TrystMutant(9) && fork() == 0) return TrystMutant(9) ? 0 : 1;
            }"""
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "program")
            subprocess.run(["g++", "-std=c++17", "-Wall", "-Werror", "-x", "c++", "-", "-o", program], input=source.encode(), check=True)
            judge = judging.Judge({"//a:a_test": [program]}, folder)
            self.assertEqual(judge.run(["//a:a_test"], 0)[:2], (0, frozenset()))
            self.assertEqual(judge.run(["//a:a_test"], "all")[:2], (0, {3, 9}))
            self.assertEqual(judge.run(["//a:a_test"], 3)[:2], (-6, {3}))
            self.assertEqual(judge.run(["//a:a_test"], 9)[:2], (0, {9}))
            self.assertEqual(judge.run(["//a:a_test"], 5)[:2], (0, frozenset()))
            self.assertEqual(judge.run(["//a:a_test", "--more"], 5)[:2], (1, {5}))

    def test_a_fault_in_a_header_is_one_fault_wherever_it_is_included(self):
        header = """
            #ifndef A_H_
            #define A_H_
            inline int Plus(int n) { return n + 1; }
            template <typename T>
            T Minus(T n) { return n - 1; }
            struct Box {
              int Twice() const { return n * 2; }
              int n;
            };
            #endif
            """
        faults = [fault(old, new)._replace(number=3 + i, name=old) for i, (old, new) in enumerate((
            ("return n + 1;", "int unused; return n;"), ("n - 1", "n - 5"), ("n * 2", "n")))]
        planted, refused = planting.plant(header, faults, in_header=True)
        self.assertEqual(refused, {})
        # Each word says what one of the sources sees. Without a fault: 3, 1, 1 (of a double), 4.
        see = "int %s() { return Plus(2) * 1000 + Minus(2) * 100 + static_cast<int>(Minus(2.0)) * 10 + Box{2}.Twice(); }\n"
        texts = {"a.h": planted, "library.cc": '#include "a.h"\n' + see % "Library", "other.cc": '#include "a.h"\n' + see % "Other",
                 "main.cc": """#include <cstdio>
                     #include "a.h"
                     int Library();
                     int Other();
                     %s
                     int main() { printf("%%d %%d %%d", Library(), Other(), Here()); }""" % (see % "Here")}
        # A source that has faults of its own and includes the header.
        texts["other.cc"] = planting.plant(texts["other.cc"], [fault("Plus(2) * 1000", "9000")._replace(number=6)])[0]
        with tempfile.TemporaryDirectory() as folder:
            for name, text in texts.items():
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(text)
            strict = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-O1"]
            subprocess.run(strict + ["-shared", "-fPIC", "library.cc", "-o", "library.so"], cwd=folder, check=True)
            subprocess.run(strict + ["main.cc", "other.cc", "./library.so", "-o", "program"], cwd=folder, check=True)
            judge = judging.Judge({"//a:a_test": [os.path.join(folder, "program")]}, folder)
            for awake, said, passed in ((0, "3114 3114 3114", set()), (3, "2114 2114 2114", {3}), (4, "2674 2674 2674", {4}),
                                        (5, "3112 3112 3112", {5}), (6, "3114 9114 3114", {6}), ("all", "3114 3114 3114", {3, 4, 5, 6})):
                run = judge.run(["//a:a_test"], awake)
                self.assertEqual((run.text, run.passed), (said, passed), awake)


Generated = collections.namedtuple("Generated", "name edits")

# Passes the fault 7 in its way, and says so.
PROGRAM = """#!/bin/sh
reach() { head -c 7 /dev/zero >"$TRYST_MUTANT_PASSED"; printf '\\001' >>"$TRYST_MUTANT_PASSED"; }
count() { echo >>"$0.runs"; [ $(($(wc -l <"$0.runs") % $1)) = 0 ]; }
"""


class JudgingTest(unittest.TestCase):
    def judged(self, program, runs=1):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "program")
            with open(path, "w", encoding="utf-8") as file:
                file.write(PROGRAM + program)
            os.chmod(path, 0o755)
            judge = judging.Judge({"//a:a_test": [path]}, folder, runs)
            judge.seconds[("//a:a_test",)] = 0
            return judge.judge([["//a:a_test"]], 7)

    def test_what_fails_where_the_fault_is_reached_and_passes_without_it_has_found_it(self):
        verdict = self.judged('if [ "$TRYST_MUTANT" = 7 ]; then reach; exit 3; fi')
        self.assertEqual(verdict.verdict, "found")
        self.assertIn("//a:a_test, exit 3", verdict.details)

    def test_what_fails_and_has_not_reached_it_has_found_nothing(self):
        self.assertEqual(self.judged('[ "$TRYST_MUTANT" != 7 ]').verdict, "flaky")

    def test_what_fails_without_the_fault_too_has_found_nothing(self):
        self.assertEqual(self.judged('if [ "$TRYST_MUTANT" = 7 ]; then reach; fi; exit 1').verdict, "flaky")

    def test_what_passes_has_found_nothing(self):
        verdict = self.judged('if [ "$TRYST_MUTANT" = 7 ]; then reach; fi')
        self.assertEqual(verdict[:2], ("survived", "by //a:a_test"))

    def test_what_nobody_gets_to_is_said_apart(self):
        self.assertEqual(self.judged("exit 0").verdict, "unreached")

    def test_a_race_is_found_in_one_of_several_runs(self):
        race = 'if [ "$TRYST_MUTANT" = 7 ]; then reach; count 3 && exit 1; fi; exit 0'
        self.assertEqual(self.judged(race).verdict, "survived")
        verdict = self.judged(race, runs=4)
        self.assertEqual(verdict.verdict, "found")
        self.assertIn("in run 3", verdict.details)

    def test_a_test_that_fails_as_often_by_itself_finds_no_race(self):
        flake = '[ "$TRYST_MUTANT" = 7 ] && reach; count 3 && exit 1; exit 0'
        self.assertEqual(self.judged(flake, runs=4).verdict, "flaky")

    def test_the_fastest_test_that_passes_a_fault_comes_first(self):
        slow, fast = ("//a:slow",), ("//a:fast",)
        self.assertEqual(judging.reaching({slow: {1, 2}, fast: {2}}, {slow: 9, fast: 1}),
                         {1: [["//a:slow"]], 2: [["//a:fast"], ["//a:slow"]]})

    def test_a_fault_is_judged_by_so_many_tests_and_by_all_that_are_fast(self):
        tests = [["//a:a"], ["//a:b"], ["//a:c"], ["//a:d"]]
        seconds = {("//a:a",): 1, ("//a:b",): 2, ("//a:c",): 3, ("//a:d",): 4}
        self.assertEqual(judging.how_many(tests, seconds, 2, 0), 2)
        self.assertEqual(judging.how_many(tests, seconds, 2, 6), 3)
        self.assertEqual(judging.how_many(tests, seconds, 2, 10), 4)
        self.assertEqual(judging.how_many(tests, seconds, 9, 0), 4)

    def test_links_belong_to_the_build_with_the_faults(self):
        with tempfile.TemporaryDirectory() as folder:
            tree, base, other = (os.path.join(folder, name) for name in ("tree", "base", "other"))
            out = os.path.join(base, "bazel-out/k8-opt/bin")
            program = os.path.join(out, "a/a_test")
            runfiles = program + ".runfiles/tryst/a"
            for made in (os.path.join(tree, "out"), runfiles, other):
                os.makedirs(made)
            for file in (program, os.path.join(tree, "data"), os.path.join(other, "data")):
                with open(file, "w", encoding="utf-8"):
                    pass
            os.symlink(out, os.path.join(tree, "out/bin"))
            os.symlink(os.path.join(tree, "data"), os.path.join(runfiles, "data"))
            self.assertEqual(judging.copy_is_its_own(tree, [program], out), "")
            self.assertIn("other", judging.copy_is_its_own(tree, [os.path.join(other, "data")], out))
            os.symlink(os.path.join(other, "data"), os.path.join(runfiles, "foreign"))
            self.assertIn("foreign", judging.copy_is_its_own(tree, [program], out))
            self.assertIn("out/bin leads to", judging.copy_is_its_own(tree, [], other))


if __name__ == "__main__":
    case_report.main()
