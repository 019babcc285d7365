#!/usr/bin/env python3
"""The example as ranks of a real mpirun, Debian's, by the mpi resolver.

  mpirun.py PARAMETER_SERVER    the program that it starts; needs Debian's openmpi-bin
"""
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../../tools"))
import case_report  # noqa: E402

RANKS = 5
BASE_PORT = 20000 + os.getpid() % 10000


class MpirunTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tryst-mpirun-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.output = os.path.join(self.folder, "out")

    def start(self, seconds, *words):
        token = os.path.join(self.folder, "token")
        with open(os.open(token, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(os.urandom(32).hex())
        environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        with open(self.output, "w") as out:
            process = subprocess.Popen(
                ["mpirun", "--oversubscribe", "--bind-to", "none", *words, "-np", str(RANKS), PROGRAM, "--role=task",
                 "--servers=2", "--workers=%d" % (RANKS - 2), "--seconds=%d" % seconds, "--folder=" + self.folder,
                 "--patience=5s", "--cluster=mpi", "--resolver=mpi:%d" % BASE_PORT, "--cluster_spec=ps=2,worker=*",
                 "--listen=", "--token_file=" + token],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return process

    def text(self):
        with open(self.output) as file:
            return file.read()

    def progress(self):
        return len(re.findall("^@progress", self.text(), re.M))

    def check_learnt(self):
        found = re.findall(r"^@progress \S+ \S+ \S+ (\S+)$", self.text(), re.M)
        losses = [float(loss) for loss in found if float(loss) >= 0]
        self.assertGreater(len(losses), 1, self.text()[-3000:])
        self.assertLess(losses[-1], losses[0])

    def test_the_example_learns(self):
        process = self.start(5)
        self.assertEqual(process.wait(120), 0, self.text()[-3000:])
        self.check_learnt()

    def test_a_rank_that_is_killed_leaves_the_others_to_go_on(self):
        # Otherwise mpirun ends all ranks when one dies.
        process = self.start(10, "--enable-recovery", "--mca", "orte_abort_on_non_zero_status", "0")
        self.await_progress(6)
        os.kill(self.process_of(RANKS - 1), signal.SIGKILL)
        self.await_progress(self.progress() + 6)
        process.wait(120)
        self.assertEqual(len(re.findall(r"^\d+ updates$", self.text(), re.M)), 2, self.text()[-3000:])
        self.check_learnt()

    def await_progress(self, count):
        end = time.monotonic() + 60
        while self.progress() < count:
            self.assertLess(time.monotonic(), end, self.text()[-3000:])
            time.sleep(0.2)

    def process_of(self, rank):
        for path in glob.glob("/proc/[0-9]*/environ"):
            try:
                with open(path, "rb") as file:
                    words = file.read().split(b"\0")
                with open(path.replace("environ", "cmdline"), "rb") as file:
                    command = file.read().split(b"\0")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            ours = ("--folder=" + self.folder).encode() in command
            if ours and b"OMPI_COMM_WORLD_RANK=%d" % rank in words:
                return int(path.split("/")[2])
        raise AssertionError("there is no rank %d" % rank)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    PROGRAM = os.path.abspath(sys.argv[1])
    if shutil.which("mpirun") is None:
        MpirunTest = unittest.skip("this machine lacks mpirun")(MpirunTest)
    case_report.main()
