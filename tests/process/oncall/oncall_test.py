#!/usr/bin/env python3
"""What a person on call asks, answered by the tools alone, of real processes."""
import json
import os
import re
import subprocess
import sys
import time
import unittest
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../../tools")]
import case_report  # noqa: E402
import trace_format  # noqa: E402
from workers import Puppet, eventually, tryst, tryst_json  # noqa: E402


class OnCall(unittest.TestCase):
    def setUp(self):
        self.ps = self.puppet("ps")
        self.worker = self.puppet("worker", join=[self.ps])

    def puppet(self, *args, **kwargs):
        puppet = Puppet(*args, **kwargs)
        self.addCleanup(puppet.stop)
        return puppet

    def transfer(self, step, edge, size=1000, pause=0.0):
        self.worker.tell("recv %d %s %s" % (step, edge, self.ps.name))
        self.worker.wait_for("asked %d" % step)
        time.sleep(pause)
        self.ps.tell("send %d %s %d %s" % (step, edge, size, self.worker.name))
        self.assertEqual(self.worker.wait_for("received %d" % step),
                         "received %d %s OK" % (step, edge))

    def test_who_serves_which_version(self):
        self.ps.tell("own policy")
        self.ps.wait_for("done own")
        engine = self.puppet("engine", "--status_listen=127.0.0.1:0", join=[self.ps])
        self.worker.tell("join policy %s" % self.ps.name)
        engine.tell("join policy %s 1" % self.ps.name)  # It stages the first version, and no other.
        self.ps.tell("seal 7")
        self.ps.wait_for("done seal 7")

        def views():
            said = tryst_json("weights", self.ps.place)
            return {worker: ends[0] for worker, ends in said.items() if ends}

        self.assertTrue(eventually(lambda: views()[self.ps.name]["members"] == 2), views())
        self.ps.tell("activate 7")
        self.ps.wait_for("activated 7 OK")
        self.assertTrue(eventually(lambda: all(
            views()[who.name]["serves"] == "7" and views()[who.name]["confirmed"]
            for who in (self.worker, engine))), views())
        text = tryst("weights", self.ps.place)
        self.assertRegex(text, r"set policy: version 7 is active, for \d+\.\d s; the newest is 7; 2 members\n")
        self.assertRegex(text, self.ps.name + r" +owner 0 of 1, leads +holds 7 \(0\.0 MiB\)")
        self.assertRegex(text, engine.name + r" +member +serves 7\n")

        self.ps.tell("seal 8")
        self.ps.wait_for("done seal 8")
        self.ps.tell("activate 8")
        waits = "waits for " + engine.name
        self.assertTrue(eventually(lambda: waits + "\n" in tryst("weights", self.ps.place)),
                        tryst("weights", self.ps.place))
        leader = views()[self.ps.name]
        self.assertEqual((leader["active"], leader["newest"], leader["holds"], leader["behind"]),
                         ("7", "8", ["7", "8"], 0))
        self.assertEqual(leader["awaited"], [views()[engine.name]["incarnation"]])
        self.assertEqual((views()[self.worker.name]["bytes"], views()[engine.name]["bytes"], leader["bytes"]),
                         (32, 16, 48))

        late = self.puppet("late", join=[self.ps])
        late.tell("join policy %s 0" % self.ps.name)
        self.assertTrue(eventually(lambda: views()[self.ps.name]["behind"] == 1), views())
        self.assertIn("; 3 members, 1 of which do not serve it; waits for ", tryst("weights", self.ps.place))

        # Nobody leads any more: permits run out, and each member says so.
        self.ps.kill()
        self.assertTrue(eventually(lambda: all(
            end["serves"] == "0" and end["permits_lost"] >= 1 and "does not answer" in end["note"]
            for end in (tryst_json("weights", who.place, expect=1)[who.name][0]
                        for who in (self.worker, engine))), 20))
        with urllib.request.urlopen("http://%s/metrics" % engine.status) as page:
            metrics = page.read().decode()
        for row in ("tryst_weights_serves{%s} 0", "tryst_weights_permits_lost_total{%s} N",
                    "tryst_weights_active_version{%s} 7", "tryst_weights_bytes_total{%s} 16"):
            # A machine that stood still may have lost one more.
            pattern = re.escape(row).replace("N", r"[1-9]\d*") % r'set="policy",role="member",incarnation="[0-9a-f]{16}"'
            self.assertRegex(metrics, pattern)
        self.assertNotIn("tryst_weights_members_behind", metrics)

    def test_without_a_set_of_weights(self):
        self.assertEqual(tryst("weights", self.ps.place, expect=3), "")

    def test_why_is_step_17_not_moving(self):
        self.worker.tell("recv 17 gradients " + self.ps.name)
        self.worker.tell("recv 18 other " + self.ps.name)
        ask = ["waiting", self.ps.place, self.worker.place, "--step", "17"]

        def both_ends():
            answer = tryst_json(*ask)
            found = {op["role"]: op for who in answer.values() for op in who["operations"]}
            return found if len(found) == 2 else None

        found = eventually(both_ends)
        self.assertTrue(found, tryst(*ask))
        self.assertEqual(found["fetch"]["waits_for"], "peer_send")
        self.assertEqual(found["fetch"]["peer"], self.ps.name)
        self.assertEqual(found["serve"]["waits_for"], "local_send")
        self.assertEqual(found["serve"]["peer"], self.worker.name)
        for op in found.values():
            self.assertIn(";gradients;", op["key"])
            self.assertEqual(op["step"], 17)
            self.assertGreater(op["ms"], 0)
        text = tryst(*ask)
        self.assertIn("for the producer's Send", text)
        self.assertIn("for the local Send", text)
        self.assertNotIn("other", text)
        self.ps.tell("send 17 gradients 10 " + self.worker.name)
        self.worker.wait_for("received 17")
        self.assertTrue(eventually(lambda: not any(who["operations"] for who in tryst_json(*ask).values())))

    def test_who_waits_for_a_peer_that_is_not_there(self):
        self.transfer(1, "first")
        self.worker.tell("recv 2 never " + self.ps.name)
        self.worker.wait_for("asked 2")
        self.ps.kill()

        def connection():
            answer = tryst_json("waiting", self.worker.place)
            ops = answer[self.worker.name]["operations"]
            return [op for op in ops if op["waits_for"] in ("connection", "drain")]

        waits = eventually(connection)
        self.assertEqual(len(waits), 1, tryst("waiting", self.worker.place))
        self.assertTrue(eventually(lambda: connection() and connection()[0]["detail"]))

    def test_why_is_this_pair_on_tcp(self):
        plain = self.puppet("plain", join=[self.worker], protocol="grpc")
        self.transfer(1, "fast")
        self.worker.tell("recv 2 slow " + plain.name)
        plain.tell("send 2 slow 10 " + self.worker.name)
        self.worker.wait_for("received 2 slow OK")
        answer = tryst_json("explain", self.worker.place, plain.name)
        paths = {path["path"]: path for path in answer["paths"]}
        self.assertEqual(paths["rdma/soft"]["state"], "turned down")
        self.assertIn("there is: grpc/stream, grpc", paths["rdma/soft"]["why"])
        self.assertFalse(paths["rdma/soft"]["in_use"])
        self.assertTrue(paths["grpc/stream"]["in_use"])
        self.assertEqual(paths["grpc/stream"]["done"], 1)
        answer = tryst_json("explain", self.worker.place, self.ps.name)
        paths = {path["path"]: path for path in answer["paths"] if path["role"] == "fetch"}
        used = [path for path in paths.values() if path["in_use"]]
        self.assertEqual(len(used), 1)
        self.assertNotEqual(used[0]["path"], "grpc")
        self.assertEqual(used[0]["state"], "connected")
        self.assertEqual(used[0]["done"], 1)
        text = tryst("explain", self.worker.place, plain.name)
        self.assertIn("not over rdma/soft: turned down", text)

    def test_which_worker_restarted(self):
        self.transfer(1, "before")
        self.ps.kill()
        self.ps = self.puppet("ps", port=self.ps.port, join=[self.worker])
        answer = eventually(lambda: tryst_json("explain", self.worker.place)["restarts"])
        self.assertEqual(answer, 1)
        changes = tryst_json("explain", self.worker.place)["changes"]
        restarts = [c for c in changes if c["what"].startswith("restarted")]
        self.assertEqual([c["worker"] for c in restarts], [self.ps.name])
        self.assertLess(abs(restarts[0]["unix_ms"] / 1e3 - time.time()), 60)
        self.assertIn("%s restarted" % self.ps.name,
                      tryst("explain", self.worker.place, self.ps.name))
        self.transfer(2, "after")

    def test_where_did_the_last_slow_second_go(self):
        for step in range(1, 6):
            self.transfer(step, "quick")
        self.transfer(20, "slow", size=3000000, pause=1.1)
        out = os.path.join(os.environ["TEST_TMPDIR"], "trace.json")
        # Each worker names the others, so one address is enough.
        text = tryst("trace", self.worker.place, "slow", "--out=" + out)
        self.assertIn("consumer waits for the producer's Send", text)
        self.assertIn("producer waits for the local Send", text)
        with open(out) as file:
            trace = json.load(file)
        slices, arrows = trace_format.check(trace)
        whole = [s for line in slices.values() for s in line if s["name"] == "slow"]
        self.assertEqual(len(whole), 2, text)
        self.assertEqual(len({s["args"]["id"] for s in whole}), 1)
        self.assertEqual(len({s["pid"] for s in whole}), 2)
        self.assertEqual({s["args"]["step"] for s in whole}, {20})
        for name in ("waits for the producer's Send", "waits for the local Send"):
            took = [s["dur"] for line in slices.values() for s in line if s["name"] == name]
            self.assertGreater(max(took), 0.8e6)  # It took 1.1 s, less what the asking took.
        self.assertEqual({name for _, name, _ in arrows}, {"request", "tensor"})
        request = next(ends for key, ends in arrows.items() if key[1] == "request")
        self.assertNotEqual(request[0]["pid"], request[1]["pid"])
        # Both ends are shown on one clock: the producer got the consumer's request at once.
        self.assertLess(request[1]["ts"] - request[0]["ts"], 1e5)
        for clock in trace["otherData"].values():
            self.assertLess(clock["clock_error_ns"], 1e8)

    def test_traces_of_many_operations_at_once(self):
        self.worker = self.puppet("many", join=[self.ps])
        for i in range(40):
            self.worker.tell("recv 3 edge%d %s" % (i, self.ps.name))
        for i in range(40):
            self.worker.wait_for("asked 3 edge%d" % i)
        for i in reversed(range(40)):
            self.ps.tell("send 3 edge%d 100000 %s" % (i, self.worker.name))
        for i in range(40):
            self.worker.wait_for("received 3 edge%d OK" % i)
        trace = tryst_json("trace", self.worker.place, "--step=3")
        slices, _ = trace_format.check(trace)
        names = [s["name"] for line in slices.values() for s in line]
        for i in range(40):
            self.assertIn("edge%d" % i, names)
        tryst("trace", self.worker.place, "nobody_has_this_key", expect=3)

    def test_top_shows_rates(self):
        self.transfer(1, "a")
        top = subprocess.Popen(["server/tryst", "top", self.worker.place, "--insecure", "--json",
                                "--every=500ms", "--count=40"], stdout=subprocess.PIPE, text=True)
        first = json.loads(top.stdout.readline())
        self.transfer(2, "b", size=200000)

        def rate(look):
            return next(p["megabytes_per_s"] for p in look["paths"]
                        if p["role"] == "fetch" and p["in_use"])

        self.assertEqual(rate(first), 0)
        self.assertTrue(any(rate(json.loads(line)) > 0 for line in top.stdout))
        top.kill()
        top.wait(20)
        top.stdout.close()
        table = tryst("top", self.worker.place, "--count=1")
        self.assertIn(self.ps.name, table)
        self.assertNotIn("\033", table)  # The output is not a terminal, so it has no colours.

    def test_how_fast_is_the_way_from_here_to_there(self):
        near = self.puppet("near", "--nic=auto")
        for peer, flag, path in ((self.ps, "--nic=soft", "rdma/soft"), (near, "--nic=auto", "shm"),
                                 (self.ps, "--protocol=grpc", "grpc/stream")):
            told = tryst_json("bench", peer.place, "--open_cluster", "--job=bench", flag,
                              "--listen=127.0.0.1:0")
            self.assertEqual(told["peer"], peer.name)
            self.assertGreater(told["first_ms"], 0)
            self.assertEqual([row["bytes"] for row in told["sizes"]],
                             [8, 4096, 65536, 1 << 20, 16 << 20])
            for row in told["sizes"]:
                self.assertGreater(row["p50_us"], 0)
                self.assertGreaterEqual(row["p99_us"], row["p50_us"])
                self.assertGreater(row["gib_per_s"], 0)
            used = [way["path"] for way in told["explain"]["paths"]
                    if way["role"] == "fetch" and way["in_use"]]
            self.assertEqual(used, [path], told["explain"])


class CommandLine(unittest.TestCase):
    def test_help_of_each_command(self):
        names = [line.split()[0] for line in tryst("--help").split("WORKER is")[0].splitlines()
                 if line.startswith("  ") and line.strip()]
        self.assertIn("trace", names)
        for name in names:
            self.assertIn("tryst " + name, tryst(name, "--help"))

    def test_exit_statuses(self):
        tryst("nonsense", expect=2)
        tryst("explain", expect=2)
        tryst("waiting", "--step=x", expect=2)
        tryst("explain", "/job:x/replica:0/task:0@127.0.0.1:1", "--timeout=300ms", expect=1)
        tryst("waiting", "/job:x/replica:0/task:0@127.0.0.1:1", "--timeout=300ms", expect=1)
        tryst("top", "/job:x/replica:0/task:0@127.0.0.1:1", "--timeout=300ms", "--count=1",
              expect=1)

    def test_completion(self):
        script = tryst("completion", "bash")
        words = "COMP_WORDS=(tryst %s); COMP_CWORD=1; _tryst; echo ${COMPREPLY[@]}"
        done = subprocess.run(["bash", "-c", script + words % "tr"], stdout=subprocess.PIPE,
                              text=True, check=True)
        self.assertEqual(done.stdout.split(), ["trace"])
        done = subprocess.run(["bash", "-c", script + words % "--trace_s"], stdout=subprocess.PIPE,
                              text=True, check=True)
        self.assertEqual(done.stdout.split(), ["--trace_sample_every="])
        tryst("completion", "fish", expect=1)


if __name__ == "__main__":
    case_report.main()
