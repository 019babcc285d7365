"""The example learns, by Tryst and by gRPC, and goes on when a worker is killed and started again."""

import os
import subprocess
import sys
import unittest

import case_report

EXAMPLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "examples", "tensorflow",
                       "parameter_server.py")


class ExampleTest(unittest.TestCase):

    def run_example(self, *arguments):
        done = subprocess.run([sys.executable, EXAMPLE, *arguments], timeout=200, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("it has learned", done.stdout)
        return done.stdout

    def test_it_learns_by_tryst(self):
        self.assertIn("by Tryst", self.run_example("--epochs=4"))

    def test_the_same_by_grpc(self):
        self.run_example("--epochs=4", "--protocol=grpc")

    def test_a_worker_is_killed_and_comes_back(self):
        text = self.run_example("--epochs=6", "--kill-worker")
        self.assertIn("worker 1 is back", text)


if __name__ == "__main__":
    case_report.main()
