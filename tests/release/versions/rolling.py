"""A job whose workers are upgraded one by one under load, and brought back: nothing lost, nothing doubled.

Two consumers take numbered tensors of two producers all the while. Each worker in turn drains, ends and
comes back as the other release. A receive that the drain refuses is made again of the producer's next life,
with the same number.
"""
import random
import tempfile
import threading
import time

BATCH, SIZE = 12, 300001
DEADLINE_MS = 20000
GRACE_S = 15  # terminationGracePeriodSeconds in examples/deploy/kubernetes.yaml.
# What a drain may answer. A late or a wrong tensor has another name.
REFUSALS = {"ABORTED", "UNAVAILABLE"}
# 0.2.0 ends what it had asked of a worker's last life with the answer to its hello, and not as restarted.
NO_PATH = "UNIMPLEMENTED"


class Worker:
    """One name, whose process changes."""

    def __init__(self, job, start):
        self.job, self.start = job, start
        self.lock = threading.Lock()  # Held by the thread that gives it commands.
        self.peer = self.release = None
        self.drains_s = []

    def become(self, release, program, others):
        with self.lock:
            if self.peer is not None:
                begin = time.monotonic()
                self.peer.process.stdin.close()  # It drains: what is under way lands.
                self.peer.process.wait(30)
                self.drains_s.append(time.monotonic() - begin)
                code = self.peer.process.returncode
                self.peer.process.stdout.close()
                assert code == 0, "%s ended with %d" % (self.job, code)
            self.release = release
            self.peer = self.start(program, self.job, [other.peer.place for other in others if other.peer])


class Rolling:
    """Not cases by itself: one for each order and path."""
    first = then = path = None
    make = None  # (program, job, flags, folder) -> Peer

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)

        def start(program, job, places):
            flags = [*self.flags, "--stop_deadline=10s"] + (["--join=" + ",".join(places)] if places else [])
            return type(self).make(program, job, flags, folder.name)

        self.producers = [Worker(job, start) for job in ("psa", "psb")]
        self.consumers = [Worker(job, start) for job in ("worka", "workb")]
        self.all = self.producers + self.consumers
        for worker in self.all:
            worker.become(self.first, self.programs[self.first], [other for other in self.all if other is not worker])
            self.addCleanup(lambda worker=worker: worker.peer.stop())

    def consume(self, consumer, ended, out):
        """Until `ended`: batch after batch of each producer, each number once."""
        step, edge = 0, "to" + consumer.job
        try:
            while not ended.is_set():
                for producer in self.producers:
                    mine = out["got"].setdefault(producer.job, [])
                    wanted = list(range(len(mine), len(mine) + BATCH))
                    while wanted:
                        step += 1
                        with consumer.lock:
                            with producer.lock:
                                for number in wanted:
                                    producer.peer.tell("send", step, edge, number, 1, SIZE, consumer.peer.name)
                                # The tensors are with this life, and a consumer that is slow to ask finds the next one.
                                lives = {producer.peer.answer("sent") for _ in wanted}
                                name = producer.peer.name
                            refusals = REFUSALS | ({NO_PATH} if consumer.release == "old" else set())
                            begin = time.monotonic()
                            consumer.peer.tell("recv", step, edge, "all", len(wanted), SIZE, DEADLINE_MS, name, *lives)
                            words = consumer.peer.answer("got").split()
                            out["longest"] = max(out["longest"], time.monotonic() - begin)
                        got = [int(word) for word in words if word.isdigit()]
                        out["refused"] += sum(word in refusals for word in words)
                        odd = [word for word in words if not word.isdigit() and word not in refusals]
                        if odd:
                            with open(consumer.peer.log) as log:
                                said = "".join(log.readlines()[-12:])
                            raise AssertionError(
                                "%s of %s: %s; its log ends:\n%s" % (consumer.job, producer.job, odd, said))
                        mine += got
                        wanted = [number for number in wanted if number not in got]
        except Exception as error:  # pylint: disable=broad-except
            out["error"] = error

    def test_nothing_is_lost_and_nothing_doubled(self):
        ended = threading.Event()
        outs = [{"got": {}, "refused": 0, "longest": 0, "error": None} for _ in self.consumers]
        threads = [threading.Thread(target=self.consume, args=(consumer, ended, out))
                   for consumer, out in zip(self.consumers, outs)]
        for thread in threads:
            thread.start()
        draw = random.Random(5)
        try:
            for worker in self.all:
                time.sleep(draw.uniform(0.3, 0.6))
                worker.become(self.then, self.programs[self.then], [other for other in self.all if other is not worker])
            time.sleep(0.5)
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        for out in outs:
            if out["error"]:
                raise out["error"]
            for producer in self.producers:
                got = out["got"][producer.job]
                self.assertEqual(sorted(got), list(range(len(got))), "each number once")
                self.assertGreater(len(got), 3 * BATCH)
            self.assertLess(out["longest"] * 1000, DEADLINE_MS)
        drain_s = max(max(worker.drains_s) for worker in self.all)
        self.assertLess(drain_s, GRACE_S)
        print("%d tensors, %d receives refused by drains, the longest step %.1f s, the longest drain %.1f s" % (
            sum(len(got) for out in outs for got in out["got"].values()), sum(out["refused"] for out in outs),
            max(out["longest"] for out in outs), drain_s), end=" ")


def cases(base, paths, programs, make):
    """A class for each order and path: Rolling_old_to_new_over_shm and so on."""
    orders = (("old", "new"), ("new", "old")) if programs["old"] != programs["new"] else (("new", "new"),)
    for first, then in orders:
        for path, flags in paths.items():
            name = "Rolling_%s_to_%s_over_%s" % (first, then, path.split("/")[-1])
            yield type(name, (Rolling, base), {"first": first, "then": then, "path": path, "flags": flags,
                                               "programs": programs, "make": staticmethod(make), "__module__": "__main__"})
