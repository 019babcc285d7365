"""Sends and receives of TensorFlow's between processes, over the protocol that is named: every
type, empty and odd shapes, many at once, dead tensors, failures, cancellation, loops.

    rendezvous_test.py grpc            # What TensorFlow does.
    rendezvous_test.py grpc+verbs      # The same results, and the tensors came by Tryst.
"""

import os
import sys
import time
import unittest

import numpy as np
import tensorflow as tf

import case_report
import cluster

PROTOCOL = "grpc+verbs"
PS = "/job:ps/replica:0/task:0/device:CPU:0"
WORKER = "/job:worker/replica:0/task:0/device:CPU:0"

TYPES = [
    tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8,
    tf.uint16, tf.uint32, tf.uint64, tf.bool, tf.complex64, tf.complex128, tf.string
]


def values(dtype, shape):
    numbers = np.arange(int(np.prod(shape))).reshape(shape) % 100
    if dtype == tf.string:
        return tf.constant(np.vectorize(lambda n: b"text %d" % n, otypes=[object])(numbers))
    return tf.cast(tf.constant(numbers, tf.float64), dtype)


class RendezvousTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        if PROTOCOL != "grpc":
            import tryst.tensorflow as tt

            tt.enable()
        cls.cluster = cluster.Cluster({"ps": 1, "worker": 1}, PROTOCOL)
        cls.cluster.wait()
        tf.config.experimental_connect_to_cluster(
            tf.train.ClusterSpec(cls.cluster.spec), job_name="chief", protocol=PROTOCOL)
        cls.meet()

    @classmethod
    def tearDownClass(cls):
        cls.cluster.stop()

    @classmethod
    def received(cls, name="worker:0", peer="/job:ps/replica:0/task:0"):
        for server in cls.cluster.ask(name, "stats") or []:
            for producer in server["from"]:
                if producer["worker"] == peer:
                    return producer
        return {"tensors": 0, "bytes": 0, "state": "", "by_grpc": {}, "copied": 0}

    @classmethod
    def meet(cls):
        """The first tensors go by gRPC, until the two workers have met."""
        deadline = time.time() + 60
        while time.time() < deadline:
            cls.across(tf.constant(1.0))
            if PROTOCOL == "grpc" or cls.received()["state"] == "met":
                return
            time.sleep(0.1)
        raise AssertionError(cls.cluster.ask("worker:0", "explain"))

    @staticmethod
    def across(value):
        """`value` from the parameter server to the worker, in a function of both."""
        with tf.device(PS):
            there = tf.identity(value)

        @tf.function
        def fetch():
            with tf.device(PS):
                sent = tf.identity(there)
            with tf.device(WORKER):
                return tf.identity(sent)

        with tf.device(WORKER):
            return fetch()

    def assertByTryst(self, before, at_least):
        if PROTOCOL == "grpc":
            return
        now = self.received()
        self.assertGreaterEqual(now["tensors"] - before["tensors"], at_least, now)
        self.assertEqual(now["copied"], 0)

    def test_every_type(self):
        for dtype in TYPES:
            with self.subTest(dtype=dtype):
                before = self.received()
                value = values(dtype, (3, 5))
                np.testing.assert_array_equal(self.across(value).numpy(), value.numpy())
                if dtype != tf.string:
                    self.assertByTryst(before, 1)
                elif PROTOCOL != "grpc":
                    self.assertGreater(self.received()["by_grpc"]["not_bytes"],
                                       before["by_grpc"]["not_bytes"])

    def test_shapes(self):
        shapes = [(), (0,), (1,), (3, 0, 2), (7, 1, 5), (1,) * 7 + (9,), (2,) * 9, (1 << 20,), (16 << 20,)]
        for shape in shapes:
            for dtype in (tf.float32, tf.uint8):
                with self.subTest(shape=shape, dtype=dtype):
                    value = values(dtype, shape)
                    got = self.across(value).numpy()
                    self.assertEqual(got.shape, shape)
                    np.testing.assert_array_equal(got, value.numpy())

    def test_many_at_once(self):
        count = 1000
        with tf.device(PS):
            variables = [tf.Variable(tf.fill([5], float(i))) for i in range(count)]

        @tf.function
        def gather():
            read = []
            for variable in variables:
                with tf.device(PS):
                    read.append(variable.read_value())
            with tf.device(WORKER):
                return tf.stack([tf.identity(value) for value in read])

        before = self.received()
        with tf.device(WORKER):
            for _ in range(3):
                got = gather()
        np.testing.assert_array_equal(got.numpy()[:, 0], np.arange(count, dtype=np.float32))
        self.assertByTryst(before, 3 * count)

    def test_shape_changes_from_step_to_step(self):

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def double(value):
            with tf.device(PS):
                doubled = value * 2
            with tf.device(WORKER):
                return tf.identity(doubled)

        for size in (1, 1000, 0, 100000, 3):
            with tf.device(WORKER):
                got = double(tf.range(size, dtype=tf.int64))
            np.testing.assert_array_equal(got.numpy(), np.arange(size) * 2)

    def test_loop_across_workers(self):

        @tf.function
        def loop(n):
            total = tf.constant(0)
            for i in tf.range(n):
                with tf.device(PS):
                    doubled = i * 2
                with tf.device(WORKER):
                    total += doubled
            return total

        with tf.device(WORKER):
            self.assertEqual(loop(tf.constant(50)).numpy(), 2450)

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
        self.assertEqual(self.across(tf.constant(3)).numpy(), 3)

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
        self.assertEqual(self.across(tf.constant(3)).numpy(), 3)

    def test_a_step_that_waits_is_cancelled(self):
        """By the step's deadline, while the worker waits for what is never sent."""
        graph = tf.Graph()
        with graph.as_default():
            with tf.device(PS):
                never = tf.queue.FIFOQueue(1, [tf.float32], [[]]).dequeue()
            with tf.device(WORKER):
                waits = never + 1
        options = tf.compat.v1.RunOptions(timeout_in_ms=2000)
        with tf.compat.v1.Session("grpc://" + self.cluster.spec["worker"][0], graph=graph) as session:
            with self.assertRaises((tf.errors.DeadlineExceededError, tf.errors.CancelledError)):
                session.run(waits, options=options)
        self.assertEqual(self.across(tf.constant(3)).numpy(), 3)

    def test_dead_tensors(self):
        """A branch that is not taken: Switch and Merge on different workers."""
        graph = tf.Graph()
        with graph.as_default():
            from tensorflow.python.ops import control_flow_ops

            which = tf.compat.v1.placeholder(tf.bool, [])
            with tf.device(PS):
                data = tf.compat.v1.placeholder_with_default(tf.constant([1.0, 2.0]), [2])
                no, yes = control_flow_ops.switch(data, which)
                no, yes = no + 10.0, yes + 20.0
            with tf.device(WORKER):
                merged, index = control_flow_ops.merge([no * 1.0, yes * 1.0])
        target = "grpc://" + self.cluster.spec["worker"][0]
        options = tf.compat.v1.ConfigProto()
        options.graph_options.rewrite_options.disable_meta_optimizer = True
        with tf.compat.v1.Session(target, graph=graph, config=options) as session:
            for flag in (True, False, True):
                got, taken = session.run([merged, index], {which: flag})
                np.testing.assert_array_equal(got, [21.0, 22.0] if flag else [11.0, 12.0])
                self.assertEqual(taken, 1 if flag else 0)

    def test_explain_and_stats_name_the_peer(self):
        if PROTOCOL == "grpc":
            self.skipTest("nothing to explain")
        self.across(tf.constant(1.0))
        text = self.cluster.ask("worker:0", "explain")
        self.assertIn("from /job:ps/replica:0/task:0: by Tryst", text)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("grpc"):
        PROTOCOL = sys.argv.pop(1)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    case_report.main()
