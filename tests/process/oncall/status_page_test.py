#!/usr/bin/env python3
"""The status page and the metrics of a real worker: scraped, looked at, clicked."""
import base64
import http.client
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../../tools")]
import browser  # noqa: E402
import case_report  # noqa: E402
import trace_format  # noqa: E402
from workers import PUPPET, Puppet, eventually  # noqa: E402

SAMPLE = re.compile(r'^([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)$')


def get(place, path, method="GET", host=None):
    connection = http.client.HTTPConnection(place, timeout=20)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def scrape(place):
    """{name{labels}: value}; checks the text against Prometheus's format."""
    status, text = get(place, "/metrics")
    assert status == 200 and text.endswith("\n")
    samples, types = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types, line
            types[name] = kind
            continue
        if line.startswith("# HELP "):
            continue
        match = SAMPLE.match(line)
        assert match, line
        base = re.sub("_(bucket|sum|count)$", "", match.group(1))
        family = match.group(1) if match.group(1) in types else base
        assert family in types, line
        assert (types[family] == "counter") == family.endswith("_total"), line
        series = "%s{%s}" % (match.group(1), match.group(2) or "")
        assert series not in samples, line
        samples[series] = float(match.group(3))
    return samples


class StatusPage(unittest.TestCase):
    def setUp(self):
        self.ps = self.puppet("ps")
        self.worker = self.puppet("worker", join=[self.ps])

    def puppet(self, job, join=()):
        puppet = Puppet(job, "--status_listen=127.0.0.1:0", join=join, sample_every=16)
        self.addCleanup(puppet.stop)
        return puppet

    def transfer(self, step, edge, size=1000):
        self.worker.tell("recv %d %s %s" % (step, edge, self.ps.name))
        self.ps.tell("send %d %s %d %s" % (step, edge, size, self.worker.name))
        self.worker.wait_for("received %d %s OK" % (step, edge))

    def series_there(self):
        """Of a worker with each transport: none has metrics of those it does not have."""
        shares = Puppet("shares", "--status_listen=127.0.0.1:0", "--shm=on", join=[self.worker])
        self.addCleanup(shares.stop)
        self.worker.tell("own policy")
        self.worker.wait_for("done own")
        shares.tell("join policy " + self.worker.name)
        self.assertTrue(eventually(lambda: "tryst_weights_members{" in get(self.worker.status, "/metrics")[1]
                                   and "tryst_weights_serves{" in get(shares.status, "/metrics")[1]))
        self.worker.tell("seal 1")
        self.worker.wait_for("done seal 1")
        self.worker.tell("activate 1")
        self.worker.wait_for("activated 1 OK")
        return {series.split("{")[0] for worker in (self.worker, shares) for series in scrape(worker.status)}

    def test_a_token_and_tls(self):
        folder = os.environ["TEST_TMPDIR"]
        token = os.path.join(folder, "status.token")
        with open(token, "w") as file:
            file.write("a token of the lab\n")
        cert, key = (os.path.join(folder, "status." + end) for end in ("cert", "key"))
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                        "-nodes", "-subj", "/CN=status", "-addext", "subjectAltName=IP:127.0.0.1",
                        "-days", "2", "-keyout", key, "-out", cert], check=True, stderr=subprocess.DEVNULL)
        # With a token it may listen on every address.
        guarded = Puppet("guarded", "--status_listen=0.0.0.0:0", "--status_token_file=" + token,
                         "--status_certificate_file=" + cert, "--status_key_file=" + key)
        self.addCleanup(guarded.stop)
        port = int(guarded.status.rsplit(":", 1)[1])
        trust = ssl.create_default_context(cafile=cert)

        def ask(proof=None, path="/metrics"):
            connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=trust)
            connection.request("GET", path, headers={"Authorization": proof} if proof else {})
            answer = connection.getresponse()
            body = answer.read().decode()
            connection.close()
            return answer.status, answer.headers.get("WWW-Authenticate"), body

        def basic(text):
            return "Basic " + base64.b64encode(text.encode()).decode()

        for path in ("/", "/metrics", "/paths.json", "/waiting.json", "/trace.json", "/nothing"):
            for proof in (None, "Bearer a token of the lap", "Bearer ", "Bearer a token of the lab!",
                          basic("a token of the lab"), basic("me:"), "Basic %%%", "a token of the lab",
                          basic("me:a token of the lab").replace("Basic", "Digest")):
                status, challenge, body = ask(proof, path)
                self.assertEqual((status, challenge), (401, 'Basic realm="tryst"'), (path, proof))
                self.assertNotIn("job:guarded", body)
        for proof in ("Bearer a token of the lab", "bearer a token of the lab", "BEARER  a token of the lab"):
            self.assertEqual(ask(proof)[0], 200, proof)
        self.assertIn("tryst_up_seconds", ask(basic("me:a token of the lab"))[2])
        with self.assertRaises((http.client.HTTPException, OSError)):  # Without TLS.
            get("127.0.0.1:%d" % port, "/metrics")
        # Settings that make no sense are refused at the start.
        for flags, why in ((["--status_listen=0.0.0.0:0"], "can be reached by others"),
                           (["--status_listen=127.0.0.1:0", "--status_key_file=" + key], "must both be set"),
                           (["--status_listen=127.0.0.1:0", "--status_token_file=" + os.devnull], "is empty"),
                           (["--status_listen=127.0.0.1:0", "--status_certificate_file=" + cert,
                             "--status_key_file=" + token], "its certificate and key")):
            done = subprocess.run([PUPPET, "--insecure", "--open_cluster", "--nic=soft", "--job=x",
                                   "--listen=127.0.0.1:0", *flags], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=20)
            self.assertNotEqual(done.returncode, 0, flags)
            self.assertIn(why, done.stdout + done.stderr)

    def test_every_alert_is_about_metrics_that_there_are(self):
        with open("examples/deploy/alerts.yaml") as file:
            text = file.read()
        alerts = re.findall(r"- alert: (\w+)", text)
        used = set(re.findall(r"\btryst_[a-z_]+", text))
        self.transfer(1, "e")
        there = self.series_there()
        self.assertGreater(len(alerts), 8)
        self.assertEqual(used - there, set())
        with open("docs/OPERATIONS.md") as file:
            told = file.read()
        for alert in alerts:
            self.assertIn("| `%s` |" % alert, told)

    def test_only_loopback_names_and_scripts_of_its_own(self):
        place = self.ps.status
        port = place.rsplit(":", 1)[1]
        for host in ("127.0.0.1:" + port, "127.9.8.7", "localhost:" + port, "[::1]:" + port, "[::1]"):
            self.assertEqual(get(place, "/metrics", host=host)[0], 200, host)
        for host in ("127.evil.example", "127.0.0.1.evil.example:" + port, "127.", "[::1].evil.example",
                     "localhost.evil.example", "evil.example", "127.0.0"):
            self.assertEqual(get(place, "/metrics", host=host)[0], 403, host)
        connection = http.client.HTTPConnection(place, timeout=20)
        connection.request("GET", "/")
        policy = connection.getresponse().headers["Content-Security-Policy"]
        connection.close()
        self.assertNotIn("unsafe", policy)
        self.assertIn("script-src 'sha256-", policy)
        self.assertIn("style-src 'sha256-", policy)

    def test_an_ipv6_address(self):
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            self.skipTest("this host has no IPv6")
        puppet = Puppet("six", "--status_listen=[::1]:0")
        self.addCleanup(puppet.stop)
        self.assertEqual(puppet.status[:6], "[::1]:")
        self.assertEqual(get(puppet.status, "/metrics")[0], 200)

    def test_who_drips_keeps_nobody_out(self):
        host, port = self.ps.status.rsplit(":", 1)
        drips = []
        for _ in range(60):
            drip = socket.create_connection((host, int(port)), timeout=20)
            self.addCleanup(drip.close)
            drip.sendall(b"GET /metrics HT")
            drips.append(drip)
        for _ in range(5):
            self.assertEqual(get(self.ps.status, "/metrics")[0], 200)
            for drip in drips:
                try:
                    drip.sendall(b"T")
                except OSError:
                    pass

    def test_every_panel_is_about_metrics_that_there_are(self):
        with open("examples/deploy/grafana.json") as file:
            dashboard = json.load(file)
        self.transfer(1, "e")
        there = self.series_there()
        panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
        self.assertGreater(len(panels), 8)
        self.assertEqual(len({panel["id"] for panel in dashboard["panels"]}), len(dashboard["panels"]))
        self.assertEqual(len({panel["title"] for panel in panels}), len(panels))
        for panel in panels:
            place = panel["gridPos"]
            self.assertLessEqual(place["x"] + place["w"], 24, panel["title"])
            self.assertTrue(panel["targets"], panel["title"])
            for target in panel["targets"]:
                used = set(re.findall(r"\btryst_[a-z_]+", target["expr"]))
                self.assertTrue(used or "up{" in target["expr"], target["expr"])
                self.assertEqual(used - there, set(), panel["title"])
                self.assertEqual(target["expr"].count("("), target["expr"].count(")"), target["expr"])

    def test_metrics_lose_nothing(self):
        for step in range(1, 41):
            self.transfer(step, "e%d" % step, 1000)
        path = next(p["path"] for p in json.loads(get(self.worker.status, "/paths.json")[1])["paths"]
                    if p["role"] == "fetch" and p["in_use"])
        labels = 'role="fetch",peer="%s",path="%s"' % (self.ps.name, path)

        def all_there():
            samples = scrape(self.worker.status)
            return samples if samples["tryst_bytes_total{%s}" % labels] == 40000 else None

        samples = eventually(all_there)
        self.assertTrue(samples)
        self.assertEqual(samples['tryst_operations_total{%s,result="ok"}' % labels], 40)
        self.assertEqual(samples['tryst_operations_total{%s,result="failed"}' % labels], 0)
        self.assertEqual(samples["tryst_operation_seconds_count{%s}" % labels], 40)
        buckets = [value for name, value in samples.items()
                   if name.startswith("tryst_operation_seconds_bucket{" + labels)]
        self.assertEqual(buckets, sorted(buckets))
        self.assertEqual(buckets[-1], 40)
        waited = sum(value for name, value in samples.items()
                     if name.startswith("tryst_waited_seconds_total{" + labels))
        self.assertAlmostEqual(waited, samples["tryst_operation_seconds_sum{%s}" % labels], 6)
        self.assertEqual(samples["tryst_fetches_total{}"], 40)
        kept = len(json.loads(get(self.worker.status, "/trace.json")[1])["traceEvents"])
        self.assertLess(kept, 40 * 4)  # Traces are sampled; counters are not.
        self.assertGreater(samples["tryst_trace_passed_over_total{}"], 0)

    def test_documents(self):
        self.transfer(1, "e")
        paths = json.loads(get(self.worker.status, "/paths.json")[1])
        self.assertEqual(paths["worker"], self.worker.name)
        # The poller learns that a callback on the executor has ended only after it has returned.
        self.assertTrue(eventually(lambda: json.loads(get(self.worker.status, "/waiting.json")[1])["operations"] == []))
        trace_format.check(json.loads(get(self.worker.status, "/trace.json")[1]))

    def test_who_may_not(self):
        place = self.worker.status
        self.assertEqual(get(place, "/metrics", host="evil.example")[0], 403)
        self.assertEqual(get(place, "/metrics", host="localhost:1")[0], 200)
        self.assertEqual(get(place, "/metrics", method="POST")[0], 405)
        self.assertEqual(get(place, "/etc/passwd")[0], 404)
        # Garbage and silent connections do not keep others out for ever.
        host, port = place.rsplit(":", 1)
        held = [socket.create_connection((host, int(port))) for _ in range(20)]
        held[0].sendall(b"\xff\x00garbage\r\n\r\n")
        held[1].sendall(b"GET /" + b"a" * 60000 + b" HTTP/1.1\r\n\r\n")
        self.assertEqual(get(place, "/metrics")[0], 200)
        for connection in held:
            connection.close()
        for listen, why in (("0.0.0.0:0", "status_token_file"), ("nonsense", "host:port"),
                            ("example.org:1", "not an IP address")):
            done = subprocess.run([PUPPET, "--insecure", "--open_cluster", "--job=x", "--nic=soft",
                                   "--listen=127.0.0.1:0", "--status_listen=" + listen],
                                  stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                  timeout=20)
            self.assertEqual(done.returncode, 1)
            self.assertIn(why, done.stderr)

    def test_in_a_browser(self):
        why = browser.missing()
        if why:
            self.skipTest("the status page in a browser " + why)
        for step in range(1, 4):
            self.transfer(step, "weights", 100000)
        self.worker.tell("recv 17 gradients " + self.ps.name)
        page = browser.Browser()
        self.addCleanup(page.close)
        page.open("http://%s/" % self.ps.status)
        self.assertTrue(eventually(lambda: self.ps.name in page.text("h1")))
        self.assertTrue(eventually(lambda: page.text("#rate-now") == "0 (most 0)"), page.text("#rate-now"))
        # Nothing has ended since the page was opened.
        self.assertEqual(page.text("#delay-now"), "-")
        page.open("http://%s/" % self.worker.status)
        self.assertTrue(eventually(lambda: self.worker.name in page.text("h1")))
        self.assertTrue(eventually(lambda: self.ps.name in page.text("#path-rows")))
        self.assertIn("connected", page.text("#path-rows"))
        shots = os.environ.get("TEST_UNDECLARED_OUTPUTS_DIR", os.environ["TEST_TMPDIR"])
        self.transfer(4, "weights", 3000000)
        self.assertTrue(eventually(
            lambda: not page.text("#rate-now").startswith("0 (most 0)")
            and "most" in page.text("#rate-now")))
        page.screenshot(os.path.join(shots, "paths.png"))
        self.assertEqual(page.text("#op-rows"), "")  # The rows are hidden.
        page.click("button[data-view=waiting]")
        self.assertTrue(eventually(lambda: "the producer's Send" in page.text("#op-rows")),
                        page.text("body"))
        self.assertIn("17", page.text("#step-rows"))
        self.assertEqual(page.text("#path-rows"), "")
        page.screenshot(os.path.join(shots, "waiting.png"))
        page.click("button[data-view=members]")
        self.assertIn(self.ps.name, page.text("#member-rows"))
        self.assertIn("joined", page.text("#change-rows"))
        page.screenshot(os.path.join(shots, "members.png"))
        self.assertEqual([c for c in page.complaints() if "favicon" not in c["message"]], [])
        # When the worker goes, the page says so; it does not show the last state as the present
        # one.
        self.worker.kill()
        self.assertTrue(eventually(lambda: "does not answer" in page.text("#trouble")))


if __name__ == "__main__":
    case_report.main()
