#!/usr/bin/env python3
"""audit.py: the ports of its workers are nobody else's."""
import errno
import os
import socket
import sys
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path[:0] = [HERE, os.path.join(ROOT, "tools")]

import audit  # noqa: E402
import case_report  # noqa: E402


def listen(number):
    """As a worker does."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", number))
    listener.listen()
    return listener


class PortTest(unittest.TestCase):
    def setUp(self):
        self.port = audit.Port()
        self.addCleanup(self.port.close)

    def test_nobody_else_gets_it(self):
        with socket.socket() as other, self.assertRaises(OSError) as refused:
            other.bind(("127.0.0.1", self.port.number))
        self.assertEqual(refused.exception.errno, errno.EADDRINUSE)

    def test_two_audits_have_different_ones(self):
        ports = [audit.Port() for _ in range(200)]
        self.assertEqual(len({port.number for port in ports}), len(ports))
        for port in ports:
            port.close()

    def test_a_worker_listens_there_in_each_of_its_lives(self):
        for _ in range(3):
            with listen(self.port.number) as worker, socket.socket() as peer:
                peer.connect(("127.0.0.1", self.port.number))
                accepted, _ = worker.accept()
                accepted.close()  # So that the connection's end stays with the port.


if __name__ == "__main__":
    case_report.main()
