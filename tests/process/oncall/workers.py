"""Real workers for a test to ask about: puppets, and tryst to look at them with."""
import json
import os
import queue
import subprocess
import threading
import time

TRYST = "server/tryst"
PUPPET = "tests/process/oncall/puppet"


def judge_traces(puppets):
    """What they have traced has to follow the tables of states. One that does not answer is judged by nobody."""
    out = os.path.join(os.environ["TEST_TMPDIR"], "judged.json")
    traced = subprocess.run([TRYST, "trace", *[puppet.place for puppet in puppets], "--out=" + out, "--insecure"],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
    if traced.returncode == 0:
        judged = subprocess.run([TRYST, "verify", out], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        assert judged.returncode == 0, judged.stdout


class Puppet:
    """One worker that does what it is told; see puppet.cc. When one stops, what all that live have traced is judged."""

    living = []

    def __init__(self, job, *flags, port=0, join=(), protocol="grpc+verbs", sample_every=1):
        self.name = "/job:%s/replica:0/task:0" % job
        command = [PUPPET, "--insecure", "--open_cluster", "--nic=soft", "--job=" + job,
                   "--protocol=" + protocol, "--listen=127.0.0.1:%d" % port,
                   "--trace_sample_every=%d" % sample_every, *flags]
        if join:
            command.append("--join=" + ",".join(peer.place for peer in join))
        with open(os.path.join(os.environ["TEST_TMPDIR"], job + ".err"), "a") as errors:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, stderr=errors, text=True)
        self.lines = queue.Queue()
        self.seen = []
        threading.Thread(target=self._read, daemon=True).start()
        words = self.wait_for("serving ").split()
        self.address = words[3]
        self.status = words[5] if len(words) > 5 else ""
        self.port = int(self.address.rsplit(":", 1)[1])
        self.place = "%s@%s" % (self.name, self.address)
        Puppet.living.append(self)

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line.strip())

    def tell(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def wait_for(self, start, seconds=20):
        """The next line that begins so."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for line in self.seen:
                if line.startswith(start):
                    self.seen.remove(line)
                    return line
            try:
                self.seen.append(self.lines.get(timeout=0.1))
            except queue.Empty:
                if self.process.poll() is not None:
                    break
        raise AssertionError("%s never said %r, but %r" % (self.name, start, self.seen))

    def kill(self):
        self._lives_no_more()
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process.poll() is not None:
            return self._lives_no_more()
        try:
            judge_traces(Puppet.living)
        finally:
            self._end()

    def _lives_no_more(self):
        if self in Puppet.living:
            Puppet.living.remove(self)

    def _end(self):
        self._lives_no_more()
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(self.name + " does not end")


def tryst(*args, expect=0):
    done = subprocess.run([TRYST, *args, "--insecure"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == expect, (args, done.returncode, done.stdout, done.stderr)
    return done.stdout


def tryst_json(*args, expect=0):
    return json.loads(tryst(*args, "--json", expect=expect))


def eventually(check, seconds=10):
    """check() until it is true; its last value."""
    until = time.monotonic() + seconds
    while True:
        value = check()
        if value or time.monotonic() > until:
            return value
        time.sleep(0.05)
