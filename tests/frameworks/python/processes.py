"""Processes of a test, each with an object whose methods the test calls, and which it kills."""
import contextlib
import itertools
import multiprocessing.connection
import os
import tempfile
import threading
import unittest

LIMIT = 180  # Only a hang reaches it.


def begin(kind, path, log, ready):
    """In a child that was forked, which is quick, before its parent has a server or a thread."""
    log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    thing = kind()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with multiprocessing.connection.Listener(path, "AF_UNIX") as listener:
        os.write(ready, b"1")
        while True:
            threading.Thread(target=serve, args=(thing, listener.accept()), daemon=True).start()


def serve(thing, connection):
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            name, arguments = connection.recv()
            try:
                connection.send((True, getattr(thing, name)(*arguments)))
            except BaseException as error:
                connection.send((False, f"{type(error).__name__}: {error}"))


class Remote:
    def __init__(self, path):
        self.path, self.connection = path, None

    def begin(self, name, *arguments):
        for known in (self.connection, None):  # What was known may be that of a process before.
            try:
                self.connection = known or multiprocessing.connection.Client(self.path, "AF_UNIX")
                return self.connection.send((name, arguments))
            except OSError:
                self.connection = None
        raise RuntimeError(f"{self.path} is gone")

    def end(self):
        try:
            if not self.connection.poll(LIMIT):
                raise AssertionError(f"{self.path} does not answer")
            done, value = self.connection.recv()
        except (EOFError, ConnectionError):
            self.connection = None
            raise RuntimeError(f"{self.path} is gone") from None
        if not done:
            raise RuntimeError(value)
        return value

    def call(self, name, *arguments):
        self.begin(name, *arguments)
        return self.end()

    def close(self):
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.names, self.children = itertools.count(), {}

    def start(self, kind, path=None):
        """A process with a kind() that does what its Remote calls."""
        path = path or f"{self.folder}/{kind.__name__}{next(self.names)}"
        ready, writes = os.pipe()
        child = multiprocessing.get_context("fork").Process(target=begin, args=(kind, path, f"{self.folder}/log", writes))
        child.start()
        os.close(writes)
        self.addCleanup(child.join, 30)
        self.addCleanup(child.kill)
        with open(ready, "rb") as ready:
            if not ready.read(1):
                with open(f"{self.folder}/log") as log:
                    self.fail(log.read()[-3000:])
        remote = Remote(path)
        self.children[path] = child
        self.addCleanup(remote.close)
        return remote

    def pid(self, remote):
        return self.children[remote.path].pid

    def kill(self, remote):
        self.children[remote.path].kill()
        self.children[remote.path].join(30)
        remote.close()
