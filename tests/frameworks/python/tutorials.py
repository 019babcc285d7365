#!/usr/bin/env python3
"""tutorials.py: runs the programs of docs/tutorials as they say, each role a process of its own, by a token over the loopback."""
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../.."))
PATIENCE_S = 120


def start(program, role, number, settings):
    words = [sys.executable, os.path.join(ROOT, "examples/python", program), role, *number, *settings]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def run(program, first, others, token):
    """What the first and each of the others said; fails where one of them did."""
    common = [f"--token_file={token}", "--listen=127.0.0.1:0", "--open_cluster=true"]
    began = [start(program, *first, common)]
    where = began[0].stdout.readline().strip()
    assert re.fullmatch(r"/job:\w+/replica:0/task:0@127\.0\.0\.1:\d+", where), where
    began += [start(program, *other, common + [f"--join={where}"]) for other in others]
    said = [one.communicate(timeout=PATIENCE_S)[0] for one in began]
    assert [one.returncode for one in began] == [0] * len(began), said
    return said


def main():
    with tempfile.TemporaryDirectory() as folder:
        token = os.path.join(folder, "token")
        with open(os.open(token, os.O_WRONLY | os.O_CREAT, 0o400), "w") as file:
            file.write(os.urandom(32).hex())
        ps, *workers = run("train.py", ("ps", []), [("worker", ["0"]), ("worker", ["1"])], token)
        assert "step 50: off by 0.00" in ps, ps
        assert all("learned: off by 0.00" in said for said in workers), workers
        trainer, *readers = run("weights.py", ("trainer", ["2"]), [("reader", ["0"]), ("reader", ["1"])], token)
        assert "version 5: all serve it" in trainer, trainer
        assert all("none of two versions; the last one of version 5" in said for said in readers), readers
    print("2 programs in 6 processes")


main()
