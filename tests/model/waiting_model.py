#!/usr/bin/env python3
"""Has spin search waiting.pml: docs/MODELS.md. By itself it searches for long: ./run model --waiting."""
import collections
import os
import re
import shutil
import subprocess
import sys
import tempfile

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "waiting.pml")
# Each entry leaves out one rule of docs/WIRE.md, and names the settings in which that shows.
SAFETY, LIVENESS = "safety", "liveness"
RULES = {
    "LAST_WORD": (SAFETY, {"CANCELS": 1}, "memory is given back on the last word, not at the cancel"),
    "DRAIN": (SAFETY, {"BREAKS": 1}, "memory is given back when the queue pair has drained, not when it broke"),
    "EPOCH_CHECK": (SAFETY, {"BREAKS": 1, "LATE": 1}, "what an older epoch left behind is dropped"),
    "ASKED_AGAIN": (SAFETY, {"BREAKS": 1}, "nothing is answered in an epoch before it is asked in it"),
    "KEEPING": (SAFETY, {"BREAKS": 1}, "a tensor is kept until its acceptance is known"),
    "GIVING_BACK": (SAFETY, {"CANCELS": 1}, "what was taken for a fetch that ended goes back"),
    "REPLAY": (LIVENESS, {"BREAKS": 1}, "what was asked is asked again in the next epoch"),
    "REPLAYED": (SAFETY, {"BREAKS": 1, "CANCELS": 1}, "what is not named again in the next epoch goes back"),
    "WAITS": (LIVENESS, {"BREAKS": 1}, "what is parked is named again after a break"),
    "HERE_AGAIN": (LIVENESS, {"BREAKS": 1}, "HERE is said again in the next epoch"),
    "PARKING": (LIVENESS, {}, "a fetch that waits for its Send gives its credit to others"),
    "WATCH": (LIVENESS, {"LOSSES": 1}, "a lost message is noticed although none follows it"),
}
NOTHING_GOES_WRONG = {"BREAKS": 0, "LOSSES": 0, "CANCELS": 0, "LATE": 0}

Result = collections.namedtuple("Result", "found states complete text")


def missing():
    """What cannot be found on this machine, or None."""
    lacks = [tool for tool in ("spin", "gcc") if shutil.which(tool) is None]
    return "needs " + " and ".join(lacks) if lacks else None


def search(kind, settings, without=(), memory_mb=3000, optimise="-O0"):
    """Every order of the model. Result.found: what broke, or None. To optimise pays off for long searches alone."""
    defines = ["-D%s=%d" % item for item in {**NOTHING_GOES_WRONG, **settings}.items()]
    defines += ["-DWITHOUT_" + rule for rule in without]
    compiled = ["-DVECTORSZ=2048", "-DMEMLIM=%d" % memory_mb, "-DNFAIR=3"]
    # Weak fairness: what stays possible in a process happens in the end.
    arguments = ["-m2000000", "-w22"] + (["-a", "-f", "-N", "ends"] if kind == LIVENESS else [])
    if kind == SAFETY:
        compiled += ["-DNOCLAIM", "-DSAFETY"]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(MODEL, folder)

        def call(*words):
            return subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  check=False)

        for words in (["spin", *defines, "-a", "waiting.pml"], ["gcc", optimise, "-w", *compiled, "-o", "pan", "pan.c"]):
            made = call(*words)
            if made.returncode != 0:
                raise RuntimeError("%s: %s" % (" ".join(words), made.stdout))
        text = call("./pan", *arguments).stdout
        errors = re.search(r"errors: (\d+)", text)
        states = re.search(r"(\d+) states, stored", text)
        if not errors or not states:
            raise RuntimeError("the search did not end: " + text)
        found = None
        if errors[1] != "0":
            found = re.search(r"pan:1: (.*) \(at depth", text)[1]
            text = call("spin", *defines, "-t", "-r", "-s", "waiting.pml").stdout
        complete = "Search not completed" not in text and "max search depth too small" not in text
        return Result(found, int(states[1]), complete or found is not None, text)


def main():
    lacks = missing()
    if lacks:
        sys.exit("waiting_model: " + lacks)
    code = 0
    for kind, settings in ((SAFETY, {"BREAKS": 2, "CANCELS": 1, "LATE": 1, "LOSSES": 1}),
                           (SAFETY, {"BREAKS": 2, "CANCELS": 2, "LATE": 1}),
                           (SAFETY, {"BREAKS": 1, "CANCELS": 2, "LOSSES": 1, "LATE": 1, "CREDITS": 2}),
                           (LIVENESS, {"BREAKS": 1, "CANCELS": 1, "LOSSES": 1}),
                           (LIVENESS, {"BREAKS": 2, "CANCELS": 1})):
        result = search(kind, settings, memory_mb=int(os.environ.get("MODEL_MB", "12000")), optimise="-O2")
        words = ", ".join("%s %d" % item for item in settings.items()).lower()
        print("%s with %s: %d states%s: %s" % (kind, words, result.states, "" if result.complete else ", NOT ALL OF THEM",
                                               result.found or "every promise holds"), flush=True)
        if result.found:
            print(result.text)
        code |= result.found is not None or not result.complete
    sys.exit(code)


if __name__ == "__main__":
    main()
