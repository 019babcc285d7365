#!/usr/bin/env python3
"""tryst.weights as it is installed: owners and members in one process."""
import asyncio
import itertools
import signal
import threading
import time
import unittest

import ml_dtypes
import numpy
import tryst
from tryst.weights import Event, Layout, Replicate, Shard, holding, newer_than

SETTINGS = dict(listen="127.0.0.1:0", insecure=True, open_cluster=True)


def in_thread(function, *args):
    """Calls it on another thread; a function that waits for its end and gives what it gave."""
    results = []

    def run():
        try:
            results.append((function(*args), None))
        except BaseException as error:
            results.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def ended():
        thread.join(60)
        value, error = results[0]
        if error is not None:
            raise error
        return value

    return ended


class Weights(unittest.TestCase):
    sets = (f"set{number}" for number in itertools.count())

    @classmethod
    def setUpClass(cls):
        cls.first = tryst.Server(job="trainer", **SETTINGS).start()
        join = f"{cls.first.worker}@{cls.first.address}"
        cls.second = tryst.Server(job="trainer", task=1, join=join, **SETTINGS).start()
        cls.engine = tryst.Server(job="engine", join=join, **SETTINGS).start()

    @classmethod
    def tearDownClass(cls):
        for server in (cls.engine, cls.second, cls.first):
            server.stop()

    def setUp(self):
        self.set = next(self.sets)

    def owner(self, server=None, owners=1, **settings):
        owner = (server or self.first).weights(self.set, role="owner", owners=owners, permit=0.6, **settings)
        self.addCleanup(owner.close)
        return owner

    def member(self, role="member", owners=1, **settings):
        names = [f"/job:trainer/task:{task}" for task in range(owners)]
        member = self.engine.weights(self.set, role=role, owners=names, permit=0.6, **settings)
        self.addCleanup(member.close)
        return member

    def sealed(self, number=5, shape=(4, 3)):
        """An owner that has sealed a version of `w`, and what it has."""
        owner = self.owner()
        owner.declare([Layout("w", "float32", shape)])
        w = numpy.arange(numpy.prod(shape), dtype="f").reshape(shape) + number
        with owner.version(number, label=f"step {number}") as version:
            version.publish("w", w)
        return owner, w

    def test_borrowed_arrays(self):
        owner = self.owner(keep=1)
        owner.declare([Layout("w", "float32", (4, 3))])
        member, into = self.member("observer"), numpy.zeros((4, 3), "f")
        w = numpy.arange(12, dtype="f").reshape(4, 3)
        with owner.version(5) as version:
            with self.assertRaisesRegex(ValueError, "not dense"):
                version.publish("w", numpy.zeros((3, 4), "f").T, borrow=True)
            version.publish("w", w, borrow=True)
        with self.assertRaisesRegex(TimeoutError, "version 5 still has 1 boxes"):
            owner.release(5, timeout=0.1)
        owner.release(5, "copy")
        w[:] = -1
        member.fetch(5, {"w": into})
        numpy.testing.assert_array_equal(into, numpy.arange(12, dtype="f").reshape(4, 3))
        with owner.version(6) as version:
            version.publish("w", w, borrow=True)
        asyncio.run(owner.arelease(6, "drop"))
        with self.assertRaisesRegex(tryst.Aborted, "released version 6"):
            member.fetch(6, {"w": into})

    def following(self, member):
        """A member that follows on a thread, and what it has switched to."""
        switched = []
        ended = in_thread(member.follow, lambda number: ["w"],
                          lambda number, tensors: switched.append((number, tensors["w"].numpy().copy())))
        self.addCleanup(ended)
        self.addCleanup(member.close)
        return switched

    def until(self, condition):
        until = time.monotonic() + 30
        while not condition():
            self.assertLess(time.monotonic(), until, "it does not come about")
            time.sleep(0.02)

    def test_strided_arrays_of_two_owners(self):
        owners = [self.owner(self.first, 2), self.owner(self.second, 2)]
        for owner in owners:
            owner.declare([Layout("w", "float32", (6, 4), placements=[Shard(0)]),
                           Layout("b", numpy.dtype("int64"), (5,), placements=[Replicate()]),
                           Layout("parts", "uint8", (4, 4), boxes=[(0, numpy.s_[0:4, 0:1]), (1, numpy.s_[0:4, 1:4])])])
        self.assertEqual(owners[1].boxes("w"), [(slice(3, 6), slice(0, 4))])
        self.assertEqual(owners[1].layout("b").dtype, "int64")
        w = numpy.arange(24, dtype="f").reshape(6, 4)
        b, parts = numpy.arange(5), numpy.arange(16, dtype="B").reshape(4, 4)
        columns = numpy.asfortranarray(w[:3])
        backwards = w[3:][::-1, ::-1].copy()[::-1, ::-1]

        def publish(owner, rows, part):
            with owner.version(7, label="seven") as version:
                version.publish("w", rows)
                version.publish("b", numpy.repeat(b, 2)[::2])
                version.publish("parts", part)

        other = in_thread(publish, owners[1], backwards, parts[:, 1:])
        publish(owners[0], columns, parts[:, :1])
        other()
        observer = self.member("observer", 2)
        # What lies between the elements of an array stays as it was.
        memory = numpy.full((8, 12), -1, "f")
        into = memory.T[1:11:2, 7:3:-1]
        expected = memory.copy()
        expected.T[1:11:2, 7:3:-1] = w[1:6, 0:4]
        came = observer.fetch("latest", {"w": (numpy.s_[1:6, :], into), "b": None, "parts": None}, timeout=30)
        self.assertEqual((came.number, came.label), (7, "seven"))
        numpy.testing.assert_array_equal(memory, expected)
        self.assertIs(came["w"], into)
        numpy.testing.assert_array_equal(came["b"].numpy(), b)
        numpy.testing.assert_array_equal(came["parts"].numpy(), parts)
        numpy.testing.assert_array_equal(observer.fetch(7)["w"].numpy(), w)
        rows = numpy.zeros((2, 4), "f")
        several = observer.fetch(7, {"w": [(numpy.s_[4:6, :], rows), (numpy.s_[0:2, 1:2], None)], "b": []})
        numpy.testing.assert_array_equal(rows, w[4:])
        numpy.testing.assert_array_equal(several["w"][1].numpy(), w[0:2, 1:2])
        self.assertIs(several["w"][0], rows)
        self.assertEqual(several["b"], [])
        described = observer.describe(7)
        self.assertEqual((described.number, described.label), (7, "seven"))
        self.assertEqual({name: (layout.dtype, layout.shape) for name, layout in described.items()},
                         {"w": ("float32", (6, 4)), "b": ("int64", (5,)), "parts": ("uint8", (4, 4))})

    def test_only_changes_come(self):
        owner = self.owner()
        owner.declare([Layout("w", "float32", (256, 256)), Layout("b", "float32", (7,))])
        w = numpy.random.default_rng(1).random((256, 256), dtype="f")
        for number in (5, 6):
            w[number] = number
            with owner.version(number) as version:
                version.publish("w", w)
                version.publish("b", w[0, :7])
        member = self.member("observer")

        def fetched_bytes():
            return sum(view["bytes"] for view in self.engine.paths()["weights"] if view["set"] == self.set)

        arrays = {name: tensor.numpy().copy() for name, tensor in member.fetch(5).items()}
        self.assertEqual(fetched_bytes(), 4 * (256 * 256 + 7))
        came = member.fetch(6, holding(5, arrays))
        self.assertLess(fetched_bytes(), 1.02 * 4 * (256 * 256 + 7))
        numpy.testing.assert_array_equal(arrays["w"], w)
        self.assertIs(came["w"], arrays["w"])
        with self.assertRaises(TypeError):
            member.fetch(6, holding(5, {"w": None}))

    def test_a_cast(self):
        owner = self.owner()
        owner.declare([Layout("w", "bfloat16", (1000,))])
        w = numpy.random.default_rng(45).normal(size=1000).astype("f")
        with owner.version(1) as version:
            with self.assertRaisesRegex(ValueError, "say cast"):
                version.publish("w", w)
            with self.assertRaisesRegex(ValueError, "bfloat16"):
                version.publish("w", w, cast="float16")
            version.publish("w", w, cast="bfloat16")
            w[:] = 0
        w = numpy.random.default_rng(45).normal(size=1000).astype("f")
        into = numpy.zeros(1000, ml_dtypes.bfloat16)
        self.member("observer").fetch(1, {"w": into})
        numpy.testing.assert_array_equal(into.view("H"), w.astype(ml_dtypes.bfloat16).view("H"))

    def test_anything_with_dlpack(self):
        class Array:
            def __init__(self, array):
                self.array, self.shape = array, array.shape

            def __dlpack__(self, **_):
                return self.array.__dlpack__()

            def __dlpack_device__(self):
                return 1, 0

        owner = self.owner()
        owner.declare([Layout("w", "float32", (3, 2))])
        w = numpy.arange(6, dtype="f").reshape(3, 2)
        with owner.version(1) as version:
            version.publish("w", Array(w))
        numpy.testing.assert_array_equal(self.member("observer").fetch(1)["w"].numpy(), w)

    def test_an_exception_drops_the_version(self):
        owner, _ = self.sealed(5)
        with self.assertRaises(ZeroDivisionError), owner.version(6) as version:
            version.publish("w", numpy.zeros((4, 3), "f"))
            1 / 0
        with self.assertRaisesRegex(tryst.AlreadyExists, "dropped"):
            owner.publish(6, "w", numpy.ones((4, 3), "f"))
        with owner.version(7) as version:
            version.publish("w", numpy.ones((4, 3), "f"))
        with self.assertRaises(tryst.AlreadyExists):
            owner.publish(7, "w", numpy.ones((4, 3), "f"))

    def test_what_is_wrong_says_so(self):
        with self.assertRaisesRegex(tryst.InvalidArgument, "role"):
            self.first.weights(self.set, role="chief", owners=1)
        owner, _ = self.sealed(5)
        member = self.member()
        with self.assertRaises(KeyError):
            owner.publish(6, "v", numpy.zeros(3))
        with self.assertRaisesRegex(ValueError, "shape"):
            owner.publish(6, "w", numpy.zeros((3, 4), "f"))
        with self.assertRaises(KeyError):
            member.fetch(5, ["v"])
        with self.assertRaisesRegex(ValueError, "slices"):
            member.fetch(5, {"w": (numpy.s_[0:1], None)})
        with self.assertRaises(ValueError):
            member.fetch(5, {"w": numpy.zeros((3, 3), "f")})
        with self.assertRaises(tryst.InvalidArgument):
            member.fetch(5, {"w": numpy.zeros((4, 3), "i4")})
        read_only = numpy.zeros((4, 3), "f")
        read_only.flags.writeable = False
        with self.assertRaises(tryst.InvalidArgument):
            member.fetch(5, {"w": read_only})
        with self.assertRaises(tryst.NotFound):
            member.fetch(4, timeout=5)
        with self.assertRaises(tryst.FailedPrecondition):
            member.vote(5)
        with self.assertRaises(tryst.DeadlineExceeded):
            member.fetch(newer_than(5), timeout=0.2)
        with self.assertRaises(KeyError):
            owner.activate(5, mode="sudden")

    def test_a_member_keeps_to_its_rate(self):
        self.sealed(5, (4, 64))  # 1 KiB.
        member = self.member(role="observer", bytes_per_second=1024)
        begun = time.monotonic()
        for _ in range(3):
            member.fetch(5)
        # The third is asked for when the two before it are paid, but for a quarter of a second's.
        self.assertGreater(time.monotonic() - begun, 1.74)
        with self.assertRaisesRegex(tryst.InvalidArgument, "bytes_per_second=-1"):
            self.engine.weights(self.set, role="member", owners=1, bytes_per_second=-1)

    def test_a_number_that_is_none_uses_nothing_up(self):
        owner, w = self.sealed(5)
        member = self.member()
        for number in -1, 2**64:
            for call in (lambda: owner.publish(number, "w", w), lambda: owner.seal(number, timeout=1), lambda: owner.drop(number),
                         lambda: owner.activate(number, timeout=1), lambda: owner.release(number, "drop", timeout=1),
                         lambda: member.fetch(number, timeout=1), lambda: member.fetch(newer_than(number), timeout=1),
                         lambda: member.fetch(5, holding(number, {"w": w.copy()}), timeout=5),
                         lambda: member.stage(number, {"w": w.copy()}, timeout=1),
                         lambda: member._weights.stage(number, [], 1.0, tryst._tryst.Cancellation()),
                         lambda: member.vote(number), lambda: member.held(number), lambda: member.switched(number)):
                with self.assertRaises(OverflowError):
                    call()
        with owner.version(numpy.int64(6)) as version:
            version.publish("w", w + 1)
        self.assertTrue((member.fetch(6, timeout=30)["w"].numpy() == w + 1).all())

    def test_members_serve_what_is_active(self):
        owner, w = self.sealed(5)
        members = [self.member(), self.member()]
        with self.assertRaises(tryst.FailedPrecondition), members[0].serving():
            self.fail("nothing is active")
        switched = [self.following(member) for member in members]
        self.until(lambda: all("member of 2" in member.explain() for member in members))
        owner.activate(5, timeout=30)
        for member, told in zip(members, switched):
            self.until(lambda: member.serves() == (5, True))  # The permit comes soon after the switch.
            with member.serving() as number:
                self.assertEqual(number, 5)
            self.assertEqual(told[0][0], 5)
            numpy.testing.assert_array_equal(told[0][1], w)
        # Under a barrier, work that runs is waited for.
        with owner.version(6) as version:
            version.publish("w", w + 1)
        with members[0].serving():
            activated = in_thread(owner.activate, 6, "barrier", 30)
            time.sleep(1)
            self.assertEqual([told[-1][0] for told in switched], [5, 5])
        activated()
        for member, told in zip(members, switched):
            self.assertEqual(told[-1][0], 6)
            self.until(lambda: member.serves() == (6, True))
        self.assertEqual(members[0].fetch("active", ["w"]).number, 6)
        self.assertIn("version 6 is active", owner.explain())
        self.assertEqual(owner.members(), 2)
        # Without the leader nobody may serve.
        owner.close()
        self.until(lambda: members[0].serves() == (0, False))
        with self.assertRaises(tryst.FailedPrecondition), members[0].serving():
            self.fail("the permit is over")

    def test_a_member_that_needs_nothing_takes_part(self):
        owner, _ = self.sealed(5)
        member, switched = self.member(), []
        ended = in_thread(member.follow, lambda number: {}, lambda number, tensors: switched.append((number, dict(tensors))))
        owner.activate(5, timeout=30)
        self.assertEqual((switched, member.fetch(5, [])), ([(5, {})], {}))
        member.close()
        ended()

    def test_a_stage_that_fails_drops_the_version(self):
        owner, _ = self.sealed(5)
        member = self.member()
        ended = in_thread(member.follow, lambda number: 1 / 0, lambda number, tensors: None)
        with self.assertRaises(tryst.Aborted):
            owner.activate(5, timeout=30)
        self.assertIsInstance(member.trouble, ZeroDivisionError)
        member.close()
        ended()

    def test_it_is_awaited(self):
        owner = self.owner()
        owner.declare([Layout("w", "float32", (3,))])
        member, observer = self.member(), self.member("observer")

        async def all_of_it():
            early = asyncio.ensure_future(observer.afetch("latest"))
            async with owner.version(5) as version:
                version.publish("w", numpy.arange(3, dtype="f"))
            self.assertEqual((await early)["w"].numpy().tolist(), [0, 1, 2])
            activated = asyncio.ensure_future(owner.aactivate(5, timeout=30))
            heard = []
            async for event in member.events():
                heard.append(event)
                if event.kind == "prepare":
                    staged = await member.astage(5)
                    member.vote(5)
                if event.kind == "active":
                    member.switched(5)
                    break
            await activated
            self.assertEqual(heard, [Event("sealed", 5), Event("prepare", 5), Event("active", 5)])
            self.assertEqual(staged["w"].numpy().tolist(), [0, 1, 2])
            # A task that is cancelled ends its call.
            begun = time.monotonic()
            for waits in (observer.afetch(newer_than(5)), member.anext_event()):
                with self.assertRaises(TimeoutError):
                    await asyncio.wait_for(waits, 0.2)
            self.assertLess(time.monotonic() - begun, 20)
            # And one that follows goes on until it is closed.
            followed = asyncio.ensure_future(member.afollow(lambda number: None, lambda number, tensors: None))
            await asyncio.sleep(0.3)
            await asyncio.get_running_loop().run_in_executor(None, member.close)
            await asyncio.wait_for(followed, 30)

        asyncio.run(all_of_it())

    def test_ctrl_c_ends_a_wait(self):
        self.sealed(5)
        member, observer = self.member(), self.member("observer")
        self.assertEqual(member.next_event(timeout=30), Event("sealed", 5))
        for wait in (lambda: observer.fetch(newer_than(5), timeout=None), member.next_event):
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            begun = time.monotonic()
            with self.assertRaises(KeyboardInterrupt):
                wait()
            self.assertLess(time.monotonic() - begun, 20)

    def test_another_ctrl_c_leaves_no_call_behind(self):
        class Deaf:
            """A set that is slow to hear of a cancel."""
            over = False

            def find(self, *_):
                time.sleep(1)
                self.over = True
                raise tryst.Cancelled("the call was cancelled")

        self.sealed(5)
        observer = self.member("observer")
        opened, observer._weights = observer._weights, Deaf()
        signals = []

        def interrupt(*_):
            signals.append(time.monotonic())
            if len(signals) == 2:
                signal.setitimer(signal.ITIMER_REAL, 0)
            raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
        try:
            with self.assertRaises(KeyboardInterrupt):
                observer.fetch(5)
            self.assertTrue(observer._weights.over, "the call goes on")
            self.assertEqual((len(signals), observer._under_way), (2, set()))
        finally:
            observer._weights = opened

    def test_one_timeout_is_for_all_steps_of_a_call(self):
        class Slow:
            """A set of which each step takes half a second."""

            def find(self, how, number, timeout, _):
                return self.step(timeout, "version")

            def describe(self, version, timeout, _):
                return self.step(timeout, '{"number": 5, "label": "", "tensors": []}')

            def fetch(self, version, made, timeout, _):
                self.step(timeout)

            stage = fetch

            def step(self, timeout, result=None):
                timeouts.append(timeout)
                time.sleep(0.5 if timeout is None else min(0.5, timeout))
                if timeout is not None and timeout < 0.5:
                    raise tryst.DeadlineExceeded("the time is over")
                return result

        observer, timeouts = self.member("observer"), []
        opened, observer._weights = observer._weights, Slow()
        try:
            for call, timeout in ((observer.fetch, 1.2), (observer.stage, 1.2), (observer.describe, 0.7)):
                timeouts.clear()
                with self.assertRaises(TimeoutError):
                    call(5, timeout=timeout)
                for before, after in zip(timeouts, timeouts[1:]):
                    self.assertLessEqual(after, before - 0.4)
            timeouts.clear()
            observer.fetch(5, timeout=None)
            self.assertEqual(timeouts, [None] * 3)
        finally:
            observer._weights = opened

    def test_the_interpreter_goes_on_while_one_waits(self):
        owner, _ = self.sealed(5)
        member = self.member("observer")
        waits = in_thread(member.fetch, newer_than(5), None, 60)
        turns = 0
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            turns += 1
        self.assertGreater(turns, 10_000)
        with owner.version(6) as version:
            version.publish("w", numpy.ones((4, 3), "f"))
        self.assertEqual(waits().number, 6)

    def test_the_wait_for_work_ends_as_others_do(self):
        owner, w = self.sealed(5)
        member = self.member()
        waits, quiet = threading.Event(), member._quiet

        def waits_for_work(cancellation):
            waits.set()
            quiet(cancellation)

        member._quiet = waits_for_work
        ended = in_thread(member.follow, lambda number: ["w"], lambda number, tensors: None)
        owner.activate(5, timeout=30)
        self.until(lambda: member.serves() == (5, True))
        with owner.version(6) as version:
            version.publish("w", w)
        with member.serving():
            waits.clear()
            in_thread(owner.activate, 6, "barrier", 30)
            self.assertTrue(waits.wait(30))
            closing = threading.Thread(target=member.close, daemon=True)
            closing.start()
            closing.join(5)
            self.assertFalse(closing.is_alive(), "close() waits for work that waits for it")
            ended()
        # Ctrl-C ends it, too.
        member = self.member()
        member._running = 1
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with self.assertRaises(KeyboardInterrupt):
            member._wait(member._quiet)

    def test_close_ends_the_waits_of_others(self):
        self.sealed(5)
        member = self.member("observer")
        waits = in_thread(member.fetch, newer_than(5), None, 60)
        time.sleep(0.3)
        member.close()
        with self.assertRaises(tryst.Cancelled):
            waits()
        with self.assertRaisesRegex(tryst.FailedPrecondition, "closed"):
            member.fetch(5)
        self.assertEqual(member.serves(), (0, False))
        member.close()


if __name__ == "__main__":
    unittest.main()
