"""Steps that end before their tensors have come: failures at either end, deadlines, and a producer
that dies and comes back. Over the protocol that is named, with the same results.

    aborts_test.py grpc
    aborts_test.py grpc+verbs
"""

import os
import sys
import threading
import time
import unittest

import tensorflow as tf

import case_report
import cluster
import pair
from pair import PS, WORKER

CANCELLED = (tf.errors.DeadlineExceededError, tf.errors.CancelledError)
LOST = (tf.errors.UnavailableError, tf.errors.AbortedError)
CANCELS = int(os.environ.get("TRYST_TENSORFLOW_CANCELS", "50"))


def waiting_graph(count):
    """`count` tensors that are never sent, and one that is."""
    graph = tf.Graph()
    with graph.as_default():
        with tf.device(PS):
            never = [tf.queue.FIFOQueue(1, [tf.float32], [[]]).dequeue() for _ in range(count)]
            sent = tf.random.uniform([10])
        with tf.device(WORKER):
            waits = tf.add_n([tf.identity(value) for value in never])
            comes = tf.reduce_sum(sent * 0.0)
    return graph, waits, comes


class AbortsTest(pair.PairTest):

    def assertWorksAgain(self):
        """TensorFlow may tell the failure of a function once more, to the next operation of a worker that had a part in it."""
        for attempt in range(3):
            try:
                return self.assertEqual(self.across(tf.constant(3)).numpy(), 3)
            except (tf.errors.InvalidArgumentError, tf.errors.CancelledError):
                if attempt == 2:
                    raise

    def test_failure_at_the_producer(self):

        @tf.function
        def fails(value):
            with tf.device(PS):
                with tf.control_dependencies([tf.debugging.assert_less(value, 0, "too large")]):
                    sent = tf.identity(value)
            with tf.device(WORKER):
                return sent + 1

        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "too large"):
            with tf.device(WORKER):
                fails(tf.constant(1)).numpy()
        self.assertWorksAgain()

    def test_failure_at_the_consumer(self):

        @tf.function
        def fails(value):
            with tf.device(PS):
                sent = [tf.identity(value + i) for i in range(100)]
            with tf.device(WORKER):
                tf.debugging.assert_less(value, 0, "no way")
                return tf.add_n(sent)

        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "no way"):
            with tf.device(WORKER):
                fails(tf.constant(1)).numpy()
        self.assertWorksAgain()

    def cancel(self, session, waits, timeout_ms):
        with self.assertRaises(CANCELLED):
            session.run(waits, options=tf.compat.v1.RunOptions(timeout_in_ms=timeout_ms))

    def test_many_steps_are_cancelled(self):
        """By their deadlines, while the worker waits for what is never sent; what was asked for by then is aborted
        at the producer a second later, among steps that go on."""
        graph, waits, comes = waiting_graph(1)
        session = self.session(graph)
        self.addCleanup(session.close)
        self.assertEqual(session.run(comes), 0)
        for i in range(CANCELS):
            self.cancel(session, waits, 100)
            self.assertEqual(session.run(comes), 0)
            if i % 5 == 0:
                self.assertEqual(self.across(tf.constant(3)).numpy(), 3)
        time.sleep(1.5)
        self.assertEqual(self.cluster.dead(), "")
        self.assertEqual(session.run(comes), 0)
        self.assertEqual(self.across(tf.constant(3)).numpy(), 3)

    def test_a_step_with_many_receives_is_cancelled(self):
        graph, waits, comes = waiting_graph(100)
        with self.session(graph) as session:
            self.assertEqual(session.run(comes), 0)
            for _ in range(3):
                self.cancel(session, waits, 1000)
            time.sleep(1.5)
            self.assertEqual(session.run(comes), 0)


class RestartTest(unittest.TestCase):

    def test_a_producer_dies_and_comes_back(self):
        if pair.PROTOCOL != "grpc":
            import tryst.tensorflow as tt

            tt.enable()
        pairs = cluster.Cluster({"ps": 1, "worker": 1}, pair.PROTOCOL)
        self.addCleanup(pairs.stop)
        pairs.wait()
        target = "grpc://" + pairs.spec["worker"][0]
        graph, waits, comes = waiting_graph(10)
        session = tf.compat.v1.Session(target, graph=graph)
        self.run_until_met(pairs, session, comes)
        again = threading.Timer(1, self.restart, [pairs])
        again.start()
        # Over any protocol, TensorFlow's master waits until the dead worker comes back.
        with self.assertRaises(CANCELLED + LOST):
            session.run(waits, options=tf.compat.v1.RunOptions(timeout_in_ms=60000))
        again.join()
        deadline = time.time() + 60
        while True:  # TensorFlow may meet the old incarnation once more, and fail.
            try:
                with tf.compat.v1.Session(target, graph=graph) as session:
                    self.run_until_met(pairs, session, comes)
                break
            except LOST:
                self.assertLess(time.time(), deadline)
        self.assertEqual(pairs.dead(), "")

    @staticmethod
    def restart(pairs):
        pairs.kill("ps:0")
        pairs.start("ps", 0)
        pairs.wait_for("ps:0")

    def run_until_met(self, pairs, session, comes):
        """So that tensors come by the protocol of the test."""
        deadline = time.time() + 60
        while time.time() < deadline:
            self.assertEqual(session.run(comes), 0)
            told = pairs.ask("worker:0", "stats") or []
            if pair.PROTOCOL == "grpc" or any(p["state"] == "met" for s in told for p in s["from"]):
                return
            time.sleep(0.1)
        self.fail(pairs.ask("worker:0", "explain"))


if __name__ == "__main__":
    pair.take_protocol(sys.argv)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    case_report.main()
