"""What the adapters to other frameworks share. No framework is imported here."""
import contextlib
import os
import socket
import threading
import time

import tryst

_HEARS_S = 5.0


def start(job, host, token=None, join=None, settings=(), task=0):
    """A server that listens at `host`, or at host:port, and lets in who knows the token, unless the settings say otherwise."""
    listen = host if ":" in host.rpartition("]")[2] else f"{host}:0"
    settings = {"listen": listen, "open_cluster": True, **dict(settings)}
    if token and not any(name in settings for name in ("insecure", "token_file", "certificate_file")):
        memory = os.memfd_create("token")  # The file is on no disk; it is open as long as the process lives.
        os.fchmod(memory, 0o600)
        os.write(memory, token.encode())
        settings["token_file"] = f"/proc/self/fd/{memory}"
    return tryst.Server(job=job, task=task, join=join or None, **settings).start()


def own_address(towards="192.0.2.1"):
    """This machine's address on the way to that one."""
    host = towards.rpartition(":")[0] or towards
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host.strip("[]"), 9))
            address = probe.getsockname()[0]
        except OSError:  # There is no way, as on a machine without a network.
            return "127.0.0.1"
    return f"[{address}]" if ":" in address else address


class Follower:
    """Hears on a thread what a member hears: stages and votes, and holds when quiet() has said that no work runs."""

    def __init__(self, member, stage, switches):
        self._member, self._stage, self._switches = member, stage, switches
        self._changed = threading.Condition()
        self._number = self._dropped = 0  # The version that is staged; the newest that was dropped.
        self._phase = self.tensors = self._ended = self.trouble = None
        self._quiet = False
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        try:
            while True:
                self._hear(self._member.next_event())
        except BaseException as error:
            with self._changed:
                self._ended = error
                self._changed.notify_all()

    def _hear(self, event):
        kind, number = event
        if kind == "prepare":
            tensors = self._staged(number)
            with self._changed:
                self._number, self._phase, self.tensors = number, "stage", tensors
                self._changed.notify_all()
            with contextlib.suppress(tryst.FailedPrecondition):  # It is wanted no more.
                self._member.vote(number, tensors is not None)
        elif kind in ("hold", "active", "dropped"):
            with self._changed:
                if kind == "dropped":
                    self._dropped = max(self._dropped, number)
                if number == self._number:
                    self._phase = kind
                    self._answer()
                self._changed.notify_all()

    def _staged(self, number):
        until = time.monotonic() + _HEARS_S
        while True:
            try:
                return self._stage(number)
            except tryst.NotFound as error:  # An owner may not have heard yet that the version is sealed.
                self.trouble = error
                if time.monotonic() > until:
                    return None
                time.sleep(0.05)
            except Exception as error:
                self.trouble = error
                return None

    def _answer(self):
        with contextlib.suppress(tryst.FailedPrecondition):
            if self._phase == "hold" and self._quiet:
                self._member.held(self._number)
            elif self._phase == "active" and self._switches:
                self._member.switched(self._number)
            elif self._phase == "dropped":
                self.tensors = None

    def quiet(self, quiet=True):
        """Whether work of the model has ended, and none begins."""
        with self._changed:
            self._quiet = quiet
            self._answer()

    def wait(self, number, phase, timeout):
        """Until the version has come to "hold" or to "active". Aborted: it never will."""
        with self._changed:
            self._changed.wait_for(lambda: self._over(number, phase), timeout)
            if self._at(number, phase):
                return
            why = self._ended or self.trouble
            if self._dropped >= number or self._number > number or self._ended:
                raise tryst.Aborted(f"version {number} was dropped, and the model is as it was{f': {why}' if why else ''}")
        raise tryst.DeadlineExceeded(f"version {number} did not get to {phase!r} within {timeout} s, and the model is as it "
                                     f"was: {self._member.explain()}")

    def _at(self, number, phase):
        return self._number == number and self._phase in (phase, "active")

    def _over(self, number, phase):
        return self._at(number, phase) or self._dropped >= number or self._number > number or self._ended

    def decided(self, number):
        return self._at(number, "active")

    def close(self):
        self._member.close()


def register_vllm():
    """What vLLM calls in each of its processes (entry point `vllm.general_plugins`): the engine "tryst" in both of its
    registries, unless somebody else has taken the name."""
    try:
        from vllm.distributed.weight_transfer import WeightTransferEngineFactory, WeightTransferTrainerFactory
    except ImportError:  # A vLLM without such engines.
        return
    for factory, name in ((WeightTransferEngineFactory, "WorkerEngine"), (WeightTransferTrainerFactory, "TrainerEngine")):
        with contextlib.suppress(ValueError):  # The name is taken.
            factory.register_engine("tryst", "tryst.vllm_weights", name)
