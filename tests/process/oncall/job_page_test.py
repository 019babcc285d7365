#!/usr/bin/env python3
"""The page of a whole job, in a browser: of three real workers, and of 300 played back."""
import json
import os
import queue
import random
import re
import signal
import subprocess
import sys
import threading
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../../tools")]
import browser  # noqa: E402
import case_report  # noqa: E402
from status_page_test import get  # noqa: E402
from workers import TRYST, Puppet, eventually, tryst, tryst_json  # noqa: E402

SHOTS = os.environ.get("TEST_UNDECLARED_OUTPUTS_DIR", os.environ.get("TEST_TMPDIR", "/tmp"))
FIRST_PAINT_MS = 1000
UPDATE_MS = 100  # The server may take so much processor time in each second.


class Page:
    """A `tryst page` of its own."""

    def __init__(self, *words):
        self.process = subprocess.Popen([TRYST, "page", *words, "--insecure", "--status_listen=127.0.0.1:0"],
                                        stdout=subprocess.PIPE, text=True)
        lines = queue.Queue()
        threading.Thread(target=lambda: lines.put(self.process.stdout.readline()), daemon=True).start()
        self.place = re.search(r"http://(\S+)/", lines.get(timeout=20)).group(1)

    def job(self):
        return json.loads(get(self.place, "/job.json")[1])

    def cpu_ms(self):
        folder, used_ns = "/proc/%d/task" % self.process.pid, 0
        for task in os.listdir(folder):
            with open("%s/%s/schedstat" % (folder, task)) as file:
                used_ns += int(file.read().split()[0])
        return used_ns / 1e6

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(20)
        self.process.stdout.close()
        assert code == 0, code


def recording(path, workers, servers, looks=5):
    """What a job of so many would have shown: some pairs in trouble, one server slow."""
    draw = random.Random(7)
    names = ["/job:ps/replica:0/task:%d" % i for i in range(servers)]
    names += ["/job:worker/replica:0/task:%d" % i for i in range(workers)]
    with open(path, "w") as file:
        for look in range(looks):
            edges, steps = [], []
            for worker in range(servers, servers + workers):
                for ps in range(servers):
                    bad = draw.random() < 0.003
                    way = "" if bad else draw.choices(["rdma/soft", "shm", "grpc"], [90, 6, 4])[0]
                    rate = 0 if bad else draw.uniform(0, 90)
                    edges.append([worker, ps, way, int(bad), rate, rate * 3, 4, 9 * bad, 2.1,
                                  draw.uniform(0, 40) + (400 if ps == 3 else 0), "peer_send",
                                  "rdma/soft: connecting (the peer does not answer)" if bad else ""])
                for step in range(8):
                    begin = -1000 * (8 - step) + draw.uniform(-40, 40)
                    steps.append([worker, str(100 + look + step), begin, begin + draw.uniform(700, 990), "peer_send", 3,
                                  draw.uniform(100, 500)])
            rows = [[i, "10.0.%d.%d:2222" % (i // 250, i % 250), 300, 3.6e6, "" if i % 97 else "deadline exceeded"]
                    for i in range(len(names))]
            changes = [[1.7e12 + 1000 * i, draw.choice(names), "joined: incarnation 12ab"] for i in range(200)]
            json.dump({"names": names, "workers": rows, "edges": edges, "steps": steps, "changes": changes}, file)
            file.write("\n")


class OfThree(unittest.TestCase):
    def setUp(self):
        self.ps = self.puppet("ps")
        self.worker = self.puppet("worker", join=[self.ps])
        self.other = self.puppet("other", join=[self.ps])

    def puppet(self, job, join=()):
        puppet = Puppet(job, join=join)
        self.addCleanup(puppet.stop)
        return puppet

    def transfer(self, step, consumer, size=100000):
        consumer.tell("recv %d weights %s" % (step, self.ps.name))
        self.ps.tell("send %d weights %d %s" % (step, size, consumer.name))
        consumer.wait_for("received %d weights OK" % step)

    def page(self, *words):
        page = Page(*words)
        self.addCleanup(page.stop)
        return page

    def test_top_without_a_name_is_about_all(self):
        self.transfer(1, self.worker)
        rows = tryst_json("top", "--count=1", "--join=" + self.ps.place)["paths"]
        self.assertEqual({row["worker"] for row in rows}, {self.ps.name, self.worker.name})

    def test_it_finds_all_and_says_who_moves_what(self):
        page = self.page(self.worker.place, "--every=300ms")
        # No tensor was requested yet, so there is no pair and no figure.
        self.assertTrue(eventually(lambda: len(page.job()["workers"]) == 3))
        self.assertEqual(page.job()["edges"], [])
        self.transfer(1, self.worker)
        job = eventually(lambda: page.job()["edges"] and page.job())
        consumer, producer, way, bad = job["edges"][0][:4]
        self.assertEqual((job["names"][consumer], job["names"][producer], bad), (self.worker.name, self.ps.name, 0))
        self.assertTrue(way)
        self.assertTrue(eventually(lambda: [s for s in page.job()["steps"] if s[1] == "1"]))
        said = json.loads(get(page.place, "/worker" + self.worker.name)[1])
        self.assertEqual(said["paths"]["worker"], self.worker.name)
        self.assertEqual(get(page.place, "/nothing")[0], 404)
        self.assertEqual(get(page.place, "/job.json", host="evil.example")[0], 403)
        self.ps.kill()
        self.assertTrue(eventually(lambda: any(w[4] for w in page.job()["workers"]), 30))

    def test_in_a_browser(self):
        why = browser.missing()
        if why:
            self.skipTest("the job's page " + why)
        page, window = self.page(self.worker.place, "--every=300ms"), browser.Browser()
        self.addCleanup(window.close)
        window.open("http://%s/" % page.place)
        self.assertTrue(eventually(lambda: "3 of 3 members" in window.text("#up")), window.text("body"))
        self.assertIn("nobody has asked", window.text("#matrix-note"))
        self.assertNotIn("e-", window.text("header"))
        self.ps.tell("own policy")
        self.worker.tell("join policy %s" % self.ps.name)
        self.other.tell("join policy %s 0" % self.ps.name)
        self.ps.tell("seal 7")
        self.ps.wait_for("done seal 7")
        self.assertTrue(eventually(lambda: "2 members" in window.text("#weights")), window.text("#weights"))
        self.ps.tell("activate 7")
        self.assertTrue(eventually(lambda: "waits for other 0" in window.text("#weights")
                                   and "owner 0 of 1, leads" in window.text("#weights")), window.text("#weights"))
        for step in range(1, 6):
            self.transfer(step, self.worker)
            self.transfer(step, self.other)
        self.assertTrue(eventually(lambda: "2 consumers" in window.text("#matrix-note")))
        self.worker.tell("recv 17 gradients " + self.ps.name)
        self.assertTrue(eventually(lambda: "ps 0" in window.text("#members")))
        window.screenshot(os.path.join(SHOTS, "job_of_three.png"))
        # This clicks on the member whose name is last.
        script = "[...document.querySelectorAll('#members button.link')].pop().click()"
        window.call("POST", "/execute/sync", {"script": script, "args": []})
        self.assertTrue(eventually(lambda: self.worker.name in window.text("#drill-name")))
        self.assertTrue(eventually(lambda: "gradients" in window.text("#drill-ops")), window.text("#drill"))
        window.click("#drill-ops button.link")
        self.assertTrue(eventually(lambda: "peer_send" in window.text("#drill-trace")
                                   or "the producer's Send" in window.text("#drill-trace")), window.text("#drill-trace"))
        window.screenshot(os.path.join(SHOTS, "job_worker_and_key.png"))
        self.assertEqual([c for c in window.complaints() if "favicon" not in c["message"]], [])


class OfThreePaths(unittest.TestCase):
    """One producer and a consumer over each path, all of them healthy."""

    def puppet(self, job, *flags, join=(), protocol="grpc+verbs"):
        puppet = Puppet(job, *flags, join=join, protocol=protocol)
        self.addCleanup(puppet.stop)
        return puppet

    def setUp(self):
        self.ps = self.puppet("ps", "--shm=on")
        self.consumers = {"shm": self.puppet("near", "--shm=on", join=[self.ps]),
                          "rdma/soft": self.puppet("far", "--shm=off", join=[self.ps]),
                          "grpc/stream": self.puppet("plain", join=[self.ps], protocol="grpc")}

    def transfer(self, step):
        for consumer in self.consumers.values():
            consumer.tell("recv %d weights %s" % (step, self.ps.name))
            self.ps.tell("send %d weights 100000 %s" % (step, consumer.name))
        for consumer in self.consumers.values():
            consumer.wait_for("received %d weights OK" % step)

    def test_healthy_pairs_are_not_red(self):
        page = Page(self.ps.place, "--every=300ms")
        self.addCleanup(page.stop)
        for step in range(1, 6):
            self.transfer(step)
        job = eventually(lambda: len(page.job()["edges"]) == 3 and page.job())
        self.assertTrue(job, page.job())
        edges = {way: (bad, why) for _, _, way, bad, *_, why in job["edges"]}
        self.assertEqual({way: edge[0] for way, edge in edges.items()}, {"shm": 0, "rdma/soft": 0, "grpc/stream": 0}, edges)
        table = tryst("top", "--count=1", "--join=" + self.ps.place)
        self.assertNotIn("e+", table)
        why = browser.missing()
        if why:
            self.skipTest("the job's page " + why)
        window = browser.Browser()
        self.addCleanup(window.close)
        window.call("POST", "/goog/cdp/execute", {"cmd": "Page.addScriptToEvaluateOnNewDocument", "params": {"source": """
            window.painted = [];
            const fill = CanvasRenderingContext2D.prototype.fillText;
            CanvasRenderingContext2D.prototype.fillText = function(text, ...rest) {
              window.painted.push(String(text)); return fill.call(this, text, ...rest); };"""}})
        window.open("http://%s/" % page.place)
        self.assertTrue(eventually(lambda: "4 of 4 members" in window.text("#up")), window.text("body"))
        self.assertTrue(eventually(lambda: "3 consumers" in window.text("#matrix-note")), window.text("body"))
        self.transfer(6)
        time.sleep(3)  # Another look.
        self.assertEqual(window.text("#red"), "")
        painted = window.call("POST", "/execute/sync", {"script": "return window.painted", "args": []})
        self.assertIn("now", painted)
        self.assertEqual([text for text in painted if re.search(r"\de[-+]\d", text)], [])
        window.screenshot(os.path.join(SHOTS, "job_of_three_paths.png"))
        for name in (worker.name for worker in [self.ps, *self.consumers.values()]):
            # At once: the page draws its members anew every second.
            script = "[...document.querySelectorAll('#members button.link')].find(one => one.textContent == arguments[0]).click()"
            window.call("POST", "/execute/sync", {"script": script, "args": ["%s 0" % name.split("/")[1][4:]]})
            self.assertTrue(eventually(lambda: name in window.text("#drill-name") and "0" in window.text("#drill-paths")))
            self.assertEqual(window.call("POST", "/elements", {"using": "css selector", "value": "#drill-paths .bad"}),
                             [], window.text("#drill-paths"))
            window.screenshot(os.path.join(SHOTS, "job_drill_%s.png" % name.split("/")[1][4:]))
            window.click("#drill button")
        # A producer that is gone makes its pairs red.
        self.ps.kill()
        self.consumers["shm"].tell("recv 7 weights " + self.ps.name)
        self.assertTrue(eventually(lambda: "in trouble" in window.text("#red"), 30), window.text("body"))
        self.assertEqual([c for c in window.complaints() if "favicon" not in c["message"]], [])


class OfThreeHundred(unittest.TestCase):
    def test_in_a_browser(self):
        why = browser.missing()
        if why:
            self.skipTest("the job's page " + why)
        path = os.path.join(os.environ["TEST_TMPDIR"], "recording")
        recording(path, 284, 16)
        page = Page(path)
        self.addCleanup(page.stop)
        window = browser.Browser()
        self.addCleanup(window.close)
        paint = 2 * FIRST_PAINT_MS
        for _ in range(5):  # The others of this machine may be in its way.
            if paint < FIRST_PAINT_MS:
                break
            window.open("http://%s/" % page.place)
            self.assertTrue(eventually(lambda: "of 300 members" in window.text("#up")), window.text("body"))
            paint = min(paint, window.call("POST", "/execute/sync", {
                "script": "return performance.getEntriesByName('first-contentful-paint')[0].startTime", "args": []}))
        before, start = page.cpu_ms(), time.monotonic()
        time.sleep(6)
        used = (page.cpu_ms() - before) / (time.monotonic() - start)
        print("300 workers: first paint after %.0f ms, %.1f ms of the server's processor a second" % (paint, used),
              file=sys.stderr)
        self.assertIn("284 consumers", window.text("#matrix-note"))
        self.assertIn("in trouble", window.text("#red"))
        self.assertTrue(window.text("#stragglers").startswith("ps 3"))
        for scheme in ("light", "dark"):
            window.call("POST", "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {
                "features": [{"name": "prefers-color-scheme", "value": scheme}]}})
            time.sleep(0.5)
            window.screenshot(os.path.join(SHOTS, "job_of_300_%s.png" % scheme))
        self.assertLess(paint, FIRST_PAINT_MS)
        self.assertLess(used, UPDATE_MS)
        self.assertEqual([c for c in window.complaints() if "favicon" not in c["message"]], [])


if __name__ == "__main__":
    case_report.main()
