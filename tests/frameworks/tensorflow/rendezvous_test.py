"""Sends and receives of TensorFlow's between processes, over the protocol that is named: every
type, empty and odd shapes, many at once, dead tensors, failures, loops. (Steps that are cut off: aborts_test.py.)

    rendezvous_test.py grpc            # What TensorFlow does.
    rendezvous_test.py grpc+verbs      # As there, and the tensors came by Tryst.
"""

import os
import sys
import time
import unittest

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import gen_sendrecv_ops

import case_report
import pair
from pair import PS, WORKER

TYPES = [
    tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8,
    tf.uint16, tf.uint32, tf.uint64, tf.bool, tf.complex64, tf.complex128
]
QUANTISED = {tf.qint8: tf.int8, tf.quint8: tf.uint8, tf.qint16: tf.int16, tf.quint16: tf.uint16, tf.qint32: tf.int32}
NARROW = [
    getattr(tf.dtypes.experimental, name) for name in ("float8_e5m2", "float8_e4m3fn", "int4", "uint4")
    if hasattr(tf.dtypes.experimental, name)
]


def values(dtype, shape):
    numbers = np.arange(int(np.prod(shape))).reshape(shape) % 100
    if dtype == tf.string:
        return tf.constant(np.vectorize(lambda n: b"text %d" % n, otypes=[object])(numbers))
    if dtype in QUANTISED:
        return tf.bitcast(tf.cast(tf.constant(numbers), QUANTISED[dtype]), dtype)
    if dtype in NARROW:
        whole = tf.constant(numbers % 8, tf.int8)
        return tf.cast(whole if "int" in dtype.name else tf.cast(whole, tf.float32), dtype)
    return tf.cast(tf.constant(numbers, tf.float64), dtype)


class RendezvousTest(pair.PairTest):

    def same(self, dtype):
        value = values(dtype, (3, 5))
        got = self.across(value)
        self.assertEqual(got.dtype, value.dtype)
        self.assertEqual(got.numpy().tobytes(), value.numpy().tobytes())

    def test_every_type(self):
        for dtype in TYPES + list(QUANTISED) + NARROW:
            with self.subTest(dtype=dtype):
                before = self.received()
                self.same(dtype)
                self.assertByTryst(before, 1)

    @staticmethod
    def as_written():
        """No edge is optimised away."""
        options = tf.compat.v1.ConfigProto()
        options.graph_options.rewrite_options.disable_meta_optimizer = True
        return options

    def test_strings_go_by_grpc(self):
        before = self.received()
        value = values(tf.string, (3, 5))
        np.testing.assert_array_equal(self.across(value).numpy(), value.numpy())
        self.assertByGrpc(before, 1)

    def test_variants_go_by_grpc(self):
        """A list of tensors, which is one tensor of a variant."""

        @tf.function
        def listed(rows):
            with tf.device(PS):
                made = tf.raw_ops.TensorListFromTensor(tensor=rows, element_shape=tf.constant([2]))
            with tf.device(WORKER):
                return tf.raw_ops.TensorListStack(input_handle=made, element_shape=tf.constant([2]),
                                                  element_dtype=tf.float32)

        before = self.received()
        with tf.device(WORKER):
            got = listed(tf.reshape(tf.range(6.0), [3, 2]))
        np.testing.assert_array_equal(got.numpy(), np.arange(6.0).reshape(3, 2))
        self.assertByGrpc(before, 1)

    def test_resources_go_by_grpc(self):
        """The handle of a variable of the parameter server, to the worker and back, where it can be read. TensorFlow
        places what takes a handle beside the variable, so it is sent by hand."""
        with self.session(tf.Graph()) as session:
            lives = {device.name: device.incarnation for device in session.list_devices()}

        def move(value, name, here, there):
            way = (name, here, lives[here], there)
            with tf.device(here):
                sent = gen_sendrecv_ops.send(value, *way)
            with tf.device(there):
                return gen_sendrecv_ops.recv(value.dtype, *way), sent

        graph = tf.Graph()
        with graph.as_default():
            with tf.device(PS):
                handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[2], shared_name="of_handles")
                set_it = tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant([3.0, 4.0]))
            moved, sent = move(handle, "to the worker", PS, WORKER)
            back, sent_back = move(moved, "and back", WORKER, PS)
            with tf.device(PS):
                read = tf.raw_ops.ReadVariableOp(resource=back, dtype=tf.float32)
        with self.session(graph, config=self.as_written()) as session:
            session.run(set_it)
            before = self.received()
            np.testing.assert_array_equal(session.run([read, sent, sent_back])[0], [3.0, 4.0])
        self.assertByGrpc(before, 1)

    def test_shapes(self):
        shapes = [(), (0,), (1,), (3, 0, 2), (7, 1, 5), (1,) * 7 + (9,), (2,) * 9, (1 << 20,), (16 << 20,)]
        for shape in shapes:
            for dtype in (tf.float32, tf.uint8)[:1 if shape == (16 << 20,) else 2]:
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
        # At most one copy, from TensorFlow's memory to where it is used.
        if pair.PROTOCOL != "grpc":
            counters = self.cluster.ask("worker:0", "stats")[0]["tryst"]
            self.assertEqual((counters["shm_copied"], counters["shm_in_parts"]), (0, 0))

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
        before = self.received()
        with self.session(graph, config=self.as_written()) as session:
            for flag in (True, False, True):
                got, taken = session.run([merged, index], {which: flag})
                np.testing.assert_array_equal(got, [21.0, 22.0] if flag else [11.0, 12.0])
                self.assertEqual(taken, 1 if flag else 0)
        if pair.PROTOCOL != "grpc":
            self.assertGreaterEqual(self.received()["dead"] - before["dead"], 3)

    def test_tools_name_the_peer_and_the_tensor(self):
        """explain and stats; trace, by the names of TensorFlow's edges."""
        if pair.PROTOCOL == "grpc":
            self.skipTest("gRPC has none of these tools")
        graph = tf.Graph()
        with graph.as_default():
            with tf.device(PS):
                sent = tf.random.uniform([10], name="a_name_of_the_program")
            with tf.device(WORKER):
                got = sent + 1
        deadline = time.time() + 30
        text = ""
        with self.session(graph, config=self.as_written()) as session:
            while "a_name" not in text and time.time() < deadline:  # A busy tracer leaves some out.
                session.run(got)
                text = self.cluster.ask("worker:0", "trace a_name_of_the_program")
        self.assertIn("from /job:ps/replica:0/task:0: by Tryst", self.cluster.ask("worker:0", "explain"))
        self.assertGreater(self.cluster.ask("worker:0", "stats")[0]["tryst"]["shm_fetches"], 0)
        self.assertRegex(text, "fetches from /job:ps/replica:0/task:0 .*;edge_.*a_name_of_the_program")


if __name__ == "__main__":
    pair.take_protocol(sys.argv)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    case_report.main()
