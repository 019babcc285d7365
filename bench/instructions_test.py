#!/usr/bin/env python3
"""What is made of callgrind's files, and that a count that grew is noticed."""
import os
import sys
import unittest

HERE = os.path.dirname(os.path.realpath(__file__))
sys.dont_write_bytecode = True
sys.path[:0] = [HERE, os.path.join(HERE, "../tools")]

import cache_lines  # noqa: E402
import callgrind  # noqa: E402
import case_report  # noqa: E402
import instructions  # noqa: E402
import passed  # noqa: E402

# main 10 of its own; Send 20, which calls Copy 5 twice; Down, which calls itself.
DUMP = """\
# callgrind format
events: Ir

ob=(1) /bin/pull
fl=(1) ???
fn=(1) main
0 10
cfn=(2) tryst::TurnedPair::Send(int)
calls=2 0
0 30
cfn=(4) Down
calls=1 0
0 7

fn=(2)
0 20
cob=(2) /lib/libc.so
cfn=(3) Copy
calls=2 0
* 10

fn=(4)
0 4
cfn=(4)
calls=1 0
0 3
+1 3

ob=(2)
fn=(3)
0 10
"""


def line(value, system="tryst_shm"):
    return {"figure": "instructions_pull", "system": system, "value": value}


class InstructionsTest(unittest.TestCase):
    def setUp(self):
        path = os.path.join(os.environ.get("TEST_TMPDIR", "/tmp"), "callgrind.out")
        with open(path, "w") as file:
            file.write(DUMP)
        self.functions, self.objects = callgrind.read(path)

    def test_each_function_alone_and_with_what_it_called(self):
        self.assertEqual(self.functions["main"], (10, 47))
        self.assertEqual(self.functions["tryst::TurnedPair::Send(int)"], (20, 30))
        self.assertEqual(self.functions["Copy"], (10, 10))

    def test_a_call_of_itself_is_counted_once(self):
        self.assertEqual(self.functions["Down"], (7, 7))

    def test_each_object(self):
        self.assertEqual(self.objects, {"/bin/pull": 37, "/lib/libc.so": 10})

    def test_the_stages_add_up(self):
        each = instructions.stages(self.functions, 2, instructions.TURNED)
        self.assertEqual((each["send"], each["ask"], each["deliver"], each["pull"]), (15, 0, 8.5, 23.5))
        self.assertEqual(instructions.stages(self.functions, 2, instructions.BY_GRPC)["rest"], 23.5)

    def test_the_file_of_a_function(self):
        texts = {"a/op.cc": "void Op::Go(int n) {\n  Other::Go(n);\n}\nvoid Free(int) {\n}\n",
                 "b/other.cc": "void Caller() {\n  Op::Go(1);\n}\n",
                 "b/other.h": "class TAG Other {\n  void Go(int);\n};\nvoid Free(int);\n"}
        for function, path in [("tryst::Op::Go(int)", "a/op.cc"), ("tryst::Other::Go(int) [clone .part.0]", "b/other.h"),
                               ("void tryst::(anonymous namespace)::Free(std::vector<int, std::less<int>>)", "a/op.cc"),
                               ("non-virtual thunk to tryst::Op::Go(int)", "a/op.cc"), ("tryst::wire::Free(int)", "a/op.cc"),
                               ("tryst::Gone::Go(int)", None)]:
            with self.subTest(function):
                self.assertEqual(passed.file_of(*passed.plain(function), texts), path)
        self.assertIsNone(passed.plain("grpc::Server::Go(int)"))

    def test_what_grew_by_more_than_a_twentieth(self):
        self.assertEqual(instructions.grown([line(105)], [line(100)]), ([], 1, 0))
        self.assertEqual(instructions.grown([line(106)], [line(200), line(100)]), ([(line(106), 100)], 1, 0))
        self.assertEqual(instructions.grown([line(106)], [line(100, "tryst_rdma")]), ([], 0, 1))

    def test_a_stage_may_grow_by_what_another_loses(self):
        def of(figure, value):
            return {"figure": "instructions_" + figure, "system": "tryst_shm", "value": value}
        before = [of("ask", 100), of("pull", 1000)]
        self.assertEqual(instructions.grown([of("ask", 120), of("pull", 999)], before)[0], [])
        self.assertEqual(instructions.grown([of("ask", 120), of("pull", 1000)], before)[0], [(of("ask", 120), 100)])
        self.assertEqual(instructions.grown([of("ask", 110), of("pull", 1000)], before)[0], [])
        self.assertTrue(instructions.judged(of("ask", 1)))
        self.assertFalse(instructions.judged(of("rest", 1)))

    def test_cache_lines_of_each_stage(self):
        found = {"CountFromHere": 0x10, "CountToHere": 0x20, "tryst::TurnedPair::Send(int)": 0x100,
                 "tryst::TurnedPair::Ask(int)": 0x200, "tryst::TurnedPair::Ask(int)::{lambda()#1}": 0x300}
        at, begin, end = cache_lines.entries(found, instructions.TURNED)
        self.assertEqual(at, {0x100: "send", 0x200: "ask"})
        trace = ["==1== Lackey", " L 00000040,8", "I  00108010,1",  # What comes before is not counted,
                 " L 00000040,8",                                   # nor what comes before the first stage.
                 "I  00108100,2", " L 00001000,8", " S 0000103f,2",  # Two lines, of which one is half in each,
                 "I  00108200,3", " M 00001000,4", " L 00002000,8",  # and two, of which one was touched before.
                 "I  00108100,2", " L 00001000,8",                   # The next pull.
                 "I  00108020,1", "I  00108100,2", " L 00009000,8"]
        seen = cache_lines.accesses(iter([line.encode() + b"\n" for line in trace]), begin, end)
        self.assertEqual(cache_lines.touched(seen, at, "send"), {"send": 3, "ask": 2, "pull": 4})
        with self.assertRaises(RuntimeError):
            list(cache_lines.accesses(iter([b"I  00208010,1\n"]), begin, end))

    def test_the_last_count_is_in_the_history(self):
        history = instructions.figures.read(os.path.join(HERE, "history.jsonl"))
        last = {one["system"] for one in history if one["figure"] == "instructions_pull"}
        self.assertEqual(last, {path.system for path in instructions.PATHS.values()})


if __name__ == "__main__":
    case_report.main()
