"""TensorFlow's ParameterServerStrategy on this machine: two parameter servers, two workers and a
coordinator; a model with embeddings that learns which words a text is about.

    python parameter_server.py                      # by Tryst
    python parameter_server.py --protocol=grpc      # the same program by TensorFlow's gRPC
    python parameter_server.py --kill-worker        # a worker is killed and started again

The program says protocol="grpc+verbs" and `tt.enable()`; nothing else of it knows of Tryst.
"""

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

WORDS = 5000
WIDTH = 64
BATCH = 256
LENGTH = 20


def serve(options, spec):
    import tensorflow as tf

    if options.protocol != "grpc":
        import tryst.tensorflow as tt

        tt.enable()
    server = tf.distribute.Server(
        tf.train.ClusterSpec(spec), job_name=options.job, task_index=options.task,
        protocol=options.protocol)
    print("serving", flush=True)
    server.join()


def free_ports(count):
    """Below those that the kernel gives out, so that nobody is given one meanwhile."""
    sockets = []
    while len(sockets) < count:
        opened = socket.socket()
        try:
            opened.bind(("127.0.0.1", random.randint(12000, 32000)))
            sockets.append(opened)
        except OSError:
            opened.close()
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


def start(options, spec, job, task):
    return subprocess.Popen(
        [sys.executable, os.path.abspath(__file__), "--protocol=" + options.protocol,
         "--job=" + job, "--task=%d" % task, "--spec=" + json.dumps(spec)],
        stdout=subprocess.PIPE, text=True)


def learn(options, spec, processes):
    import tensorflow as tf

    if options.protocol != "grpc":
        import tryst.tensorflow as tt

        tt.enable()
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(spec), rpc_layer=options.protocol)
    strategy = tf.distribute.experimental.ParameterServerStrategy(
        resolver,
        variable_partitioner=tf.distribute.experimental.partitioners.FixedShardsPartitioner(2))
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        vectors = tf.Variable(lambda: tf.random.stateless_normal([WORDS, WIDTH], [1, 2]) * 0.1,
                              shape=[WORDS, WIDTH], dtype=tf.float32)
        weights = tf.Variable(lambda: tf.random.stateless_normal([WIDTH, 1], [3, 4]) * 0.1,
                              shape=[WIDTH, 1], dtype=tf.float32)
        done = tf.Variable(0, dtype=tf.int64)

    def texts(seed):
        """Words, and whether more of them are even than odd: the truth to be learned."""
        words = tf.random.stateless_uniform([BATCH, LENGTH], [seed, 7], 0, WORDS, tf.int32)
        even = tf.reduce_sum(1 - words % 2, axis=1)
        return words, tf.cast(even * 2 > LENGTH, tf.float32)

    @tf.function
    def step(seed):
        words, labels = texts(seed)
        with tf.GradientTape() as tape:
            looked_up = tf.nn.embedding_lookup(vectors, words)
            logits = tf.squeeze(tf.reduce_sum(looked_up, axis=1) @ weights, axis=1)
            loss = tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
        shards = list(vectors.variables) + list(weights.variables)
        for shard, gradient in zip(shards, tape.gradient(loss, shards)):
            if isinstance(gradient, tf.IndexedSlices):
                shard.scatter_sub(tf.IndexedSlices(gradient.values * 2.0, gradient.indices))
            else:
                shard.assign_sub(gradient * 2.0)
        done.assign_add(1)
        right = tf.reduce_mean(tf.cast((logits > 0) == (labels > 0.5), tf.float32))
        return loss, right

    first = None
    began = time.time()
    for epoch in range(options.epochs):
        if options.kill_worker and epoch == options.epochs // 2:
            killer = restart(options, spec, processes)
        results = [
            coordinator.schedule(step, args=(tf.constant(epoch * options.steps + i),))
            for i in range(options.steps)
        ]
        coordinator.join()
        losses = [result.fetch() for result in results]
        loss = sum(float(loss) for loss, _ in losses) / len(losses)
        right = sum(float(right) for _, right in losses) / len(losses)
        first = first or loss
        print("after %4d steps: loss %.3f, %.0f%% right" % (
            (epoch + 1) * options.steps, loss, 100 * right), flush=True)
    if options.kill_worker:
        killer.join()
    seconds = time.time() - began
    print("%d steps in %.1f s by %s" % (int(done.numpy()), seconds, options.protocol))
    if options.protocol != "grpc":
        print(tt.explain())
    return loss < 0.8 * first


def restart(options, spec, processes):
    """Kills worker 1 and starts it again under its address; the coordinator goes on meanwhile."""

    def again():
        time.sleep(0.3)
        processes["worker:1"].kill()
        processes["worker:1"].wait()
        print("worker 1 is killed", flush=True)
        time.sleep(1)
        processes["worker:1"] = start(options, spec, "worker", 1)
        processes["worker:1"].stdout.readline()
        print("worker 1 is back", flush=True)

    thread = threading.Thread(target=again)
    thread.start()
    return thread


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--protocol", default="grpc+verbs", choices=["grpc", "grpc+verbs"])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=50, help="in each epoch")
    parser.add_argument("--kill-worker", action="store_true")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--task", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--spec", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        return serve(options, json.loads(options.spec))
    ports = iter(free_ports(4))
    spec = {job: ["127.0.0.1:%d" % next(ports) for _ in range(2)] for job in ("ps", "worker")}
    processes = {}
    learned = False
    try:
        for job in ("ps", "worker"):
            for task in (0, 1):
                processes["%s:%d" % (job, task)] = start(options, spec, job, task)
        for process in processes.values():
            process.stdout.readline()  # It prints "serving".
        learned = learn(options, spec, processes)
    finally:
        for process in processes.values():
            process.kill()
    print("it has learned" if learned else "it has not learned")
    sys.stdout.flush()
    os._exit(0 if learned else 1)  # TensorFlow's coordinator never ends by itself.


if __name__ == "__main__":
    main()
