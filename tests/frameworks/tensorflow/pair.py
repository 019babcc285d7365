"""A parameter server and a worker that speak one protocol, and tensors from the one to the other."""

import time
import unittest

import tensorflow as tf

import cluster

PROTOCOL = "grpc+verbs"
PS = "/job:ps/replica:0/task:0/device:CPU:0"
WORKER = "/job:worker/replica:0/task:0/device:CPU:0"


def take_protocol(arguments):
    global PROTOCOL
    if len(arguments) > 1 and arguments[1].startswith("grpc"):
        PROTOCOL = arguments.pop(1)


class PairTest(unittest.TestCase):

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

    def tearDown(self):
        self.assertEqual(self.cluster.dead(), "")

    @classmethod
    def received(cls, name="worker:0", peer="/job:ps/replica:0/task:0"):
        for server in cls.cluster.ask(name, "stats") or []:
            for producer in server["from"]:
                if producer["worker"] == peer:
                    return producer
        return {"tensors": 0, "bytes": 0, "state": "", "by_grpc": {"not_bytes": 0}, "copied": 0, "dead": 0}

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

    def session(self, graph, config=None):
        return tf.compat.v1.Session("grpc://" + self.cluster.spec["worker"][0], graph=graph, config=config)

    def assertByTryst(self, before, at_least):
        if PROTOCOL == "grpc":
            return
        now = self.received()
        self.assertGreaterEqual(now["tensors"] - before["tensors"], at_least, now)
        self.assertEqual(now["copied"], 0)

    def assertByGrpc(self, before, at_least):
        if PROTOCOL != "grpc":
            self.assertGreaterEqual(
                self.received()["by_grpc"]["not_bytes"] - before["by_grpc"]["not_bytes"], at_least)
