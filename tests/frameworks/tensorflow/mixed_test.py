"""A worker with the plug-in and one without in one job, in both directions."""

import sys
import time
import unittest

import tensorflow as tf

import case_report
import cluster

PS = "/job:ps/replica:0/task:0/device:CPU:0"


class MixedTest(unittest.TestCase):

    def setUp(self):
        import tryst.tensorflow as tt

        tt.enable()
        self.cluster = cluster.Cluster({"ps": 1, "worker": 2}, "grpc+verbs", {"worker:1": "grpc"})
        self.cluster.wait()
        tf.config.experimental_connect_to_cluster(
            tf.train.ClusterSpec(self.cluster.spec), job_name="chief", protocol="grpc+verbs")

    def tearDown(self):
        self.cluster.stop()

    def test_each_pair_goes_its_way(self):
        with tf.device(PS):
            table = tf.Variable(tf.range(1000.0))

        @tf.function
        def pull():
            return tf.reduce_sum(table + 1.0)

        workers = ["/job:worker/replica:0/task:%d/device:CPU:0" % task for task in (0, 1)]

        @tf.function
        def back(value):  # From the worker without the plug-in.
            with tf.device(workers[1]):
                made = value * 2.0
            with tf.device(PS):
                return tf.reduce_sum(made + 1.0)

        def pushed():
            with tf.device(PS):
                return back(tf.range(10.0)).numpy()

        until = time.time() + 60
        while time.time() < until:
            for device in workers:
                with tf.device(device):
                    self.assertEqual(pull().numpy(), 500500.0)
            self.assertEqual(pushed(), 100.0)
            text = self.cluster.ask("ps:0", "explain")
            if "it has no plug-in" in text:
                break
            time.sleep(0.2)
        self.assertIn("from /job:worker/replica:0/task:1: by gRPC: it did not answer the greeting; "
                      "it has no plug-in", text)
        self.assertIn("from /job:ps/replica:0/task:0: by Tryst",
                      self.cluster.ask("worker:0", "explain"))
        self.assertEqual(pushed(), 100.0)

    def test_a_session_ends_while_its_worker_is_greeted(self):
        """The parameter server wants a tensor of the worker that never answers the greeting, in a session that is
        closed at once; ten seconds later the greeting is given up."""
        graph = tf.Graph()
        with graph.as_default():
            with tf.device("/job:worker/replica:0/task:1/device:CPU:0"):
                made = tf.random.uniform([10])
            with tf.device(PS):
                got = tf.reduce_sum(made * 0.0)
        for _ in range(3):
            with tf.compat.v1.Session("grpc://" + self.cluster.spec["worker"][1], graph=graph) as session:
                self.assertEqual(session.run(got), 0)
        time.sleep(12)
        self.assertEqual(self.cluster.dead(), "")
        with tf.compat.v1.Session("grpc://" + self.cluster.spec["worker"][1], graph=graph) as session:
            self.assertEqual(session.run(got), 0)


if __name__ == "__main__":
    case_report.main()
