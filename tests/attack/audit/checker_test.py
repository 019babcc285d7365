#!/usr/bin/env python3
"""checker.py: what keeps the promises passes, and each planted breach is found by its rule and by no other."""
import contextlib
import io
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path[:0] = [HERE, os.path.join(ROOT, "tools")]

import case_report  # noqa: E402
import checker  # noqa: E402

S = 1000000
OK, CANCELLED, DEADLINE, EXHAUSTED, ABORTED, UNAVAILABLE = 0, 1, 4, 8, 10, 14
END = 100 * S


class Histories:
    """A producer p-1 and a consumer c-1, between whom stream 7 goes over the software NIC; what they would write."""

    def __init__(self, hosts=("a", "b")):
        self.workers = [host + "." + name for host, name in zip(hosts, "pc")]
        self.harm = ["allow slack_ms 1000 0", "allow patience_ms 8000 0", "allow after_ms 1000 0"]
        self.harm += ["life %s-1 %s 100000 0" % (worker, worker) for worker in self.workers]
        self.harm.append("stream 7 %s-1 %s-1 soft 0" % tuple(self.workers))
        self.producer, self.consumer = ["L p 0"], ["L c 0", "P 7 soft"]
        self.calls = 0
        self.exits = dict.fromkeys(self.workers, 0)
        self.byes = set(self.workers)

    def send(self, seq, at, key="0", code=OK, total="aa", took=100):
        self.calls += 1
        self.producer.append("S %d 7 %s %d 64 %s %d" % (self.calls, key, seq, total, at))
        if code is not None:
            self.producer.append("s %d %d %d" % (self.calls, code, at + took))
        return self.calls

    def receive(self, seq, at, ended, key="0", code=OK, timeout=-1, way="fresh", total="aa", said=None):
        """`ended` None: never."""
        self.calls += 1
        self.consumer.append("R %d 7 %s %d %s %d" % (self.calls, key, timeout, way, at))
        if ended is not None:
            got = " " + (said or "7 %s %d 64 %s" % (key, seq, total)) if code == OK else ""
            self.consumer.append("r %d %d %d%s" % (self.calls, code, ended, got))
        return self.calls

    def judge(self):
        with tempfile.TemporaryDirectory() as folder:
            for worker, lines in zip(self.workers, (self.producer, self.consumer)):
                with open(os.path.join(folder, worker + "-1.history"), "w", encoding="ascii") as file:
                    file.write("\n".join(lines + (["E %d" % (END - S)] if worker in self.byes else [])) + "\n")
            exits = ["exit %s-1 %d %d" % (worker, code, END) for worker, code in self.exits.items() if code is not None]
            with open(os.path.join(folder, "audit.history"), "w", encoding="ascii") as file:
                file.write("\n".join(self.harm + exits + ["end %d" % END]) + "\n")
            one = checker.Checker(folder)
            self.findings, self.judged = one.run(), one.harm
            return {rule: count for (rule, _), count in self.findings.counts.items()}

    def kill(self, which, at):
        self.harm.append("kill %s-1 %d" % (self.workers[which], at))
        self.exits[self.workers[which]] = -9
        self.byes.discard(self.workers[which])


class CheckerTest(unittest.TestCase):
    def setUp(self):
        self.of = Histories()

    def expect(self, **counts):
        self.assertEqual(self.of.judge(), counts, "\n".join(self.of.findings.examples))

    # ---- What may happen ----

    def test_what_is_well_passes(self):
        for seq in range(5):
            self.of.send(seq, seq * S)
            self.of.receive(seq, seq * S, seq * S + 5000)
        self.expect()
        self.assertEqual(self.of.findings.figures["receives"], 5)

    def test_a_receive_before_its_send_waits(self):
        self.of.receive(0, 0, 50 * S + 1000)
        self.of.send(0, 50 * S)
        self.expect()

    def test_a_deadline_may_pass(self):
        self.of.receive(0, S, 3 * S, code=DEADLINE, timeout=2000)
        self.of.receive(0, 4 * S, 6 * S)
        self.of.send(0, 5 * S)
        self.expect()

    def test_a_send_that_finds_no_room_is_made_again(self):
        self.of.send(0, S, code=EXHAUSTED)
        self.of.send(0, 2 * S)
        self.of.receive(0, S, 3 * S)
        self.expect()

    def test_what_was_under_way_is_lost_with_its_producer(self):
        self.of.send(0, S)
        self.of.receive(0, S, None)
        self.of.send(1, 2 * S, code=None)
        self.of.kill(0, 3 * S)
        self.of.kill(1, 4 * S)
        self.expect()
        self.assertEqual(self.of.findings.figures["lost with a process that died"], 1)

    def test_a_producers_death_may_fail_receives(self):
        self.of.kill(0, 3 * S)
        self.of.receive(0, S, 10 * S, code=UNAVAILABLE)
        self.expect()

    def test_a_stop_excuses_the_time_it_took(self):
        self.of.harm += ["stop b.c-1 %d" % S, "cont b.c-1 %d" % (21 * S)]
        self.of.receive(0, S - 1000, 21 * S + 1000, code=DEADLINE, timeout=500)
        self.of.harm += ["stop a.p-1 %d" % (30 * S), "cont a.p-1 %d" % (50 * S)]
        self.of.receive(0, 29 * S, 39 * S, code=UNAVAILABLE)
        self.expect()

    def test_a_cut_may_fail_receives_and_a_slow_wire_may_not(self):
        self.of.harm += ["cut a b %d" % S, "heal b a %d" % (15 * S)]
        self.of.receive(0, 2 * S, 10 * S, code=UNAVAILABLE)
        self.expect()
        self.of = Histories()
        self.of.harm += ["slow a b %d" % S, "fast b a %d" % (15 * S)]
        self.of.receive(0, 2 * S, 10 * S, code=UNAVAILABLE)
        self.expect(failed=1)

    def test_a_cut_of_the_wire_is_no_excuse_on_one_host(self):
        self.of = Histories(hosts=("a", "a"))
        self.of.harm += ["cut a b %d" % S, "heal b a %d" % (15 * S)]
        self.of.receive(0, 2 * S, 10 * S, code=UNAVAILABLE)
        self.expect(failed=1)

    def test_the_end_of_the_step_ends_receives(self):
        self.of.receive(0, S, 20 * S + 1000, code=ABORTED)
        self.of.consumer.append("C 7 %d" % (20 * S))
        self.expect()

    def test_the_callers_memory_is_given_back_by_the_patience(self):
        self.of.receive(0, S, 6 * S, code=DEADLINE, timeout=1000, way="into")
        self.expect()

    def test_a_machine_that_lets_nobody_run_excuses_its_time(self):
        self.of.harm.append("held 4000 %d" % (5 * S))
        self.of.receive(0, S, 6 * S, code=DEADLINE, timeout=500)
        self.expect()
        self.of.harm.pop()
        self.expect(late=1)

    def test_a_cut_that_is_long_enough_explains_unavailable_and_a_short_one_does_not(self):
        self.of.harm += ["allow quiet_ms 2000 0", "cut a b %d" % S, "heal b a %d" % (2 * S)]
        self.of.receive(0, S - 1, 3 * S, code=UNAVAILABLE)
        self.expect(failed=1)

    def test_a_consumers_own_stop_is_no_patience(self):
        cut = ["allow quiet_ms 2000 0", "cut a b %d" % S, "heal b a %d" % (8 * S)]
        self.of.harm += cut + ["stop b.c-1 %d" % (8 * S), "cont b.c-1 %d" % (20 * S)]
        self.of.receive(0, S, 21 * S, code=UNAVAILABLE)
        self.expect()
        self.of = Histories()
        self.of.harm += cut
        self.of.receive(0, S, 21 * S, code=UNAVAILABLE)
        self.assertEqual(self.of.judge().get("failed"), 1)

    def test_the_silence_of_a_former_life_counts(self):
        for former, failed in (("a.p", 0), ("a.q", 1)):
            self.of = Histories()
            at = self.of.harm.index("life a.p-1 a.p 100000 0")
            self.of.harm[at:at] = ["life a.p-0 %s 1 -9" % former, "kill a.p-0 %d" % S, "exit a.p-0 -9 %d" % S]
            self.of.harm = [line.replace("soft 0", "soft %d" % (8 * S)) for line in self.of.harm]
            self.of.harm += ["allow quiet_ms 2000 0", "stop a.p-1 %d" % (8 * S), "cont a.p-1 %d" % (8 * S + 1)]
            self.of.receive(0, 8 * S, 9 * S, code=UNAVAILABLE)
            self.assertEqual(self.of.judge().get("failed", 0), failed, former)

    def test_what_is_kept_is_kept_for_so_long(self):
        for longest, lost in ((30000, 1), (10000, 0)):
            self.of = Histories()
            self.of.harm += ["allow keep_ms %d 0" % longest, "stop b.c-1 %d" % S, "cont b.c-1 %d" % (21 * S)]
            self.of.send(0, S)
            self.expect(**({"lost": 1} if lost else {}))

    # ---- What may not ----

    def test_lost(self):
        self.of.send(0, S)
        self.of.send(1, 2 * S)
        self.of.receive(1, S, 3 * S)
        self.expect(lost=1)

    def test_a_deadline_loses_nothing(self):
        self.of.send(0, S)
        self.of.receive(0, S, 3 * S, code=DEADLINE, timeout=2000)
        self.expect(lost=1)

    def test_a_receive_that_fails_takes_nothing_along(self):
        self.of.harm += ["cut a b %d" % S, "heal a b %d" % (15 * S)]
        self.of.send(0, S)
        self.of.receive(0, S, 9 * S, code=UNAVAILABLE)
        self.expect(lost=1)

    def test_a_call_of_several_may_drop_one_of_each_key(self):
        self.of.harm += ["cut a b %d" % S, "heal a b %d" % (15 * S)]
        self.of.send(0, S)
        self.of.receive(0, S, 9 * S, code=UNAVAILABLE, way="many")
        self.of.receive(0, S, 9 * S, key="1", code=UNAVAILABLE, way="many")
        self.expect()
        self.of.send(1, S)
        self.expect(lost=1)

    def test_doubled(self):
        self.of.send(0, S)
        self.of.receive(0, S, 2 * S)
        self.of.receive(0, 3 * S, 4 * S)
        self.expect(once=1)

    def test_a_call_that_ends_twice(self):
        self.of.send(0, S)
        call = self.of.receive(0, S, 2 * S)
        self.of.consumer.append("r %d 4 %d" % (call, 3 * S))
        self.of.consumer.append("r %d 0 %d 7 0 0 64 aa" % (call, 4 * S))
        self.expect(once=2)

    def test_swapped_within_a_key(self):
        for seq in range(2):
            self.of.send(seq, S + seq)
        self.of.receive(1, 2 * S, 3 * S)
        self.of.receive(0, 2 * S + 1, 3 * S)
        self.expect(order=1)

    def test_swapped_between_keys(self):
        self.of.send(0, S, key="0")
        self.of.send(0, S, key="1")
        self.of.receive(0, 2 * S, 3 * S, key="0", said="7 1 0 64 aa")
        self.of.receive(0, 2 * S, 3 * S, key="1", said="7 0 0 64 aa")
        self.expect(bytes=2, lost=2)

    def test_of_another_stream(self):
        self.of.send(0, S)
        self.of.receive(0, 2 * S, 3 * S, said="8 0 0 64 aa")
        self.expect(bytes=1, lost=1)

    def test_a_wrong_byte(self):
        self.of.send(0, S)
        self.of.receive(0, S, 2 * S, total="ab")
        self.expect(bytes=1)

    def test_a_byte_too_few(self):
        self.of.send(0, S)
        self.of.receive(0, S, 2 * S, said="7 0 0 63 aa")
        self.expect(bytes=1)

    def test_invented(self):
        self.of.receive(3, S, 2 * S)
        self.expect(invented=1)

    def test_what_failed_to_be_sent_is_received(self):
        self.of.send(0, S, code=EXHAUSTED)
        self.of.receive(0, S, 2 * S)
        self.expect(invented=1)

    def test_received_before_it_was_sent(self):
        self.of.receive(0, S, 2 * S)
        self.of.send(0, 3 * S)
        self.expect(invented=1)

    def test_late_by_its_deadline(self):
        self.of.receive(0, S, 5 * S, code=DEADLINE, timeout=2000)
        self.expect(late=1)

    def test_a_tensor_too_late(self):
        self.of.send(0, S)
        self.of.receive(0, S, 5 * S, timeout=2000)
        self.expect(late=1)

    def test_late_without_a_deadline(self):
        self.of.send(0, S)
        self.of.receive(0, 2 * S, 12 * S)
        self.expect(late=1)

    def test_late_after_the_producers_death(self):
        self.of.kill(0, 3 * S)
        self.of.receive(0, S, 13 * S, code=UNAVAILABLE)
        self.expect(late=1)

    def test_late_after_its_cancel(self):
        call = self.of.receive(0, S, 8 * S, code=CANCELLED)
        self.of.consumer.append("K %d %d" % (call, 2 * S))
        self.expect(late=1)

    def test_a_send_that_waits(self):
        self.of.send(0, S, took=2 * S)
        self.of.receive(0, S, 2 * S)
        self.expect(late=1)

    def test_a_stop_of_others_excuses_nothing(self):
        self.of.harm += ["life a.x-1 a.x 1 0", "stop a.x-1 %d" % S, "cont a.x-1 %d" % (21 * S), "kill a.x-1 %d" % (22 * S)]
        self.of.receive(0, S - 1000, 21 * S + 1000, code=DEADLINE, timeout=500)
        self.expect(late=1)

    def test_never_ended(self):
        self.of.receive(0, S, None)
        self.of.send(0, S, code=None)
        self.expect(ended=2)

    def test_a_stream_that_stands_still(self):
        self.of.send(0, S)
        self.of.harm.append("stuck 7 %d" % (60 * S))
        self.expect(ended=1, lost=1)

    def test_a_deadline_before_its_time(self):
        self.of.receive(0, S, 2 * S, code=DEADLINE, timeout=2000)
        self.expect(failed=1)

    def test_a_deadline_that_it_had_not(self):
        self.of.receive(0, S, 2 * S, code=DEADLINE)
        self.expect(failed=1)

    def test_a_cancel_that_nobody_made(self):
        self.of.receive(0, S, 2 * S, code=CANCELLED)
        self.expect(failed=1)

    def test_a_failure_for_no_reason(self):
        for code in (UNAVAILABLE, ABORTED, 15, 13):
            self.of.receive(0, S, 2 * S, code=code)
        self.of.send(0, S, code=13)
        self.expect(failed=5)

    def test_a_failure_long_after_the_reason(self):
        self.of.harm += ["stop a.p-1 %d" % S, "cont a.p-1 %d" % (2 * S)]
        self.of.receive(0, 20 * S, 21 * S, code=UNAVAILABLE)
        self.expect(failed=1)

    def test_a_death_explains_no_loss_of_data(self):
        self.of.kill(0, 3 * S)
        self.of.receive(0, S, 4 * S, code=15)
        self.expect(failed=1)

    def test_overtaken(self):
        self.of.send(0, 2 * S)
        self.of.receive(0, S, 6 * S, code=DEADLINE, timeout=5000)
        self.of.receive(0, S + 1, 3 * S)
        self.expect(overtaken=1)

    def test_bytes_that_come_too_late(self):
        call = self.of.receive(0, S, 2 * S, code=DEADLINE, timeout=1000, way="into")
        self.of.consumer.append("B %d aa ab" % call)
        self.expect(landed=1)

    def test_more_memory_than_its_limits(self):
        self.of.harm += ["memory a.p-1 50000 %d" % S, "memory a.p-1 200000 %d" % (2 * S)]
        self.expect(memory=1)

    def test_memory_that_grows(self):
        self.of.harm += ["allow growth_kib 8000 0", "allow growth_after_s 50 0"]
        self.of.harm += ["memory a.p-1 %d %d" % (20000 + 300 * at, at * S) for at in range(90)]
        self.of.harm += ["memory b.c-1 %d %d" % (20000 + 9000 * (at % 5), at * S) for at in range(90)]
        self.expect(memory=1)

    def test_pools_that_fill_late(self):
        self.of.harm += ["allow growth_kib 8000 0", "allow growth_after_s 50 0", "allow base_kib 70000 0"]
        for worker, most in (("a.p-1", 57000), ("b.c-1", 59000)):
            self.of.harm += ["memory %s %d %d" % (worker, 20000 if at < 60 else most, at * S) for at in range(90)]
        self.expect(memory=1)

    def test_a_crash(self):
        self.of.exits[self.of.workers[0]] = -11
        self.of.byes.clear()
        self.of.exits[self.of.workers[1]] = None
        self.expect(exits=2)

    def test_histories_that_make_no_sense_are_refused(self):
        for line in ("S 1 9 0 0 64 aa 5", "r 77 0 5", "X 1 2", "R one 7 0 -1 fresh 5"):
            of = Histories()
            of.consumer.append(line)
            with self.assertRaises(checker.Malformed, msg=line):
                of.judge()

    def test_a_line_that_a_kill_cut_off_is_none(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "x"), "w", encoding="ascii") as file:
                file.write("L p 0\nS 1 7 0")
            self.assertEqual([words for _, words in checker.Checker(folder).lines("x")], [["L", "p", "0"]])

    def test_a_clock_of_the_day_and_a_slow_disk_explain_nothing(self):
        self.of.harm += ["step c.c-1 600 %d" % S, "disk c.c-1 300 %d" % S]
        self.of.receive(0, S, 2 * S, code=UNAVAILABLE)
        self.expect(failed=1)

    def tells(self):
        """What the closing line counts; of memory there is nothing to judge."""
        self.of.judge()
        skipped = []
        with contextlib.redirect_stdout(io.StringIO()) as said:
            passes = checker.tell(self.of.findings, self.of.judged, skipped)
        return passes, len(skipped), [int(word) for word in said.getvalue().split("\n")[-2].split() if word.isdigit()][1:]

    def test_a_machine_that_lets_nobody_run_is_no_judge_of_times_and_of_nothing_else(self):
        for held_ms, breach, ends in ((0, False, (True, 1, [0, 1])), (0, True, (False, 1, [1, 1])), (4500, True, (True, 2, [0, 2]))):
            self.of = Histories()
            self.of.send(0, S)
            self.of.receive(0, S, (30 if breach else 2) * S)
            if held_ms:
                self.of.harm.append("held %d %d" % (held_ms, 90 * S))
            self.assertEqual(self.tells(), ends)
        self.of.receive(0, 31 * S, 32 * S)
        self.assertFalse(self.tells()[0], "one send is received twice")

    def test_many_parts_judge_as_one_does(self):
        for parts in (1, 3):
            checker.PART_BYTES = 64 << 20 if parts == 1 else 40
            self.of = Histories()
            self.of.send(0, S)
            self.of.receive(0, S, 2 * S, total="ab")
            self.of.send(1, S)
            self.expect(bytes=1, lost=1)
        checker.PART_BYTES = 64 << 20


if __name__ == "__main__":
    case_report.main()
