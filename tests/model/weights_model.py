#!/usr/bin/env python3
"""Has spin search weights.pml: docs/MODELS.md. By itself it searches for long: ./run model --weights."""
import collections
import os
import re
import shutil
import subprocess
import sys
import tempfile

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "weights.pml")
SEALING = {"SEALING": 1, "NEWEST": 2, "CRASHES": 1}
NO_CRASH = {"NEWEST": 2, "CRASHES": 0, "REIGNS": 1, "LEASE": 0}
BARRIER = {**NO_CRASH, "BARRIER": 1, "ENTRIES": 3}
ROLLING = {**NO_CRASH, "BARRIER": 0, "ENTRIES": 2}
RETURNS = {**BARRIER, "CRASHES": 1}
ALONE = {**RETURNS, "MEMBERS": 1}
TWO = {**RETURNS, "REIGNS": 2, "LOSSES": 0, "DROPS": 0, "MEMBERS_DIE": 0}
LETTING_GO = {**NO_CRASH, "BARRIER": 0, "ENTRIES": 3, "NEWEST": 3, "MEMBERS": 1, "LETTING_GO": 1, "LOSSES": 0}
TWO_ROLLING = {**ROLLING, "REIGNS": 2, "LEASE": 1, "MEMBERS": 1, "LOSSES": 0}
# Each entry leaves out one rule of the protocol, and names the promise that then breaks and settings in which it shows.
RULES = {
    "LENGTH": ("OneFate", SEALING, "an append compares the length of the log"),
    "FENCE": ("BoundedMix", TWO_ROLLING, "and the lease"),
    "TERM": ("StaleOwnerFenced", SEALING, "READY of another term is refused"),
    "WHOLE": ("WholeSeal", {**SEALING, "CRASHES": 0}, "every owner of the term is ready before the seal"),
    "FROM_QUESTION": ("NoMixUnderBarrier", BARRIER, "a permit runs from the member's question"),
    "ECHO": ("BoundedMix", {**ROLLING, "MEMBERS": 1}, "an answer counts for its own question alone"),
    "APPLYING": ("BoundedMix", ROLLING, "a permit is for the version that is active, and who gets it has applied the log"),
    "LEASE": ("BoundedMix", TWO_ROLLING, "a leader gives permits only while its lease runs"),
    "LEASE_FROM_QUESTION": ("BoundedMix", TWO_ROLLING, "which it counts from when it asked"),
    "READING": ("BoundedMix", TWO_ROLLING, "a new leader reads the log first"),
    "STOPPING": ("BoundedMix", ROLLING, "no permit is given while an ACTIVE may be being chosen"),
    "SETTLING": ("BoundedMix", ROLLING, "nor before it is known whether it was"),
    "STAGING": ("StagedBeforeTouched", BARRIER, "a member votes when all of it is staged"),
    "FRESH_VOTES": ("AllVoted", LETTING_GO, "and its vote counts for an activation when it is said since that began"),
    "PUT_OUT_WAIT": ("NoMixUnderBarrier", BARRIER, "the permits of those put out are waited for"),
    "FORMER_PERMITS": ("NoMixUnderBarrier", TWO, "and those that a former leader gave"),
    "HOLD": ("NoMixUnderBarrier", BARRIER, "under a barrier every member holds before the append"),
    "STAYING_HELD": ("NoMixUnderBarrier", BARRIER, "who holds takes no permit until it is decided"),
    "CHOOSING": ("OneOrder", BARRIER, "members switch when ACTIVE is chosen, not when it is proposed"),
    "JOINING": ("NoMixUnderBarrier", RETURNS, "a new life is no member before MEMBERS says so"),
    "COMING_EMPTY": ("ComesBackEmpty", ALONE, "and brings no permit"),
}


Result = collections.namedtuple("Result", "found states complete text")


def missing():
    """What cannot be found on this machine, or None."""
    lacks = [tool for tool in ("spin", "gcc") if shutil.which(tool) is None]
    return "needs " + " and ".join(lacks) if lacks else None


def search(settings, without=(), memory_mb=1500, optimise="-O0"):
    """Every order of the model. Result.found: the promise that broke, or None."""
    defines = ["-D%s=%d" % item for item in settings.items()] + ["-DWITHOUT_" + rule for rule in without]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(MODEL, folder)

        def call(*words):
            return subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  check=False)

        for words in (["spin", *defines, "-a", "weights.pml"],
                      ["gcc", optimise, "-w", "-DVECTORSZ=1024", "-DMEMLIM=%d" % memory_mb, "-DNOCLAIM", "-DSAFETY",
                       "-o", "pan", "pan.c"]):
            made = call(*words)
            if made.returncode != 0:
                raise RuntimeError("%s: %s" % (" ".join(words), made.stdout))
        # An end of all steps is no fault here: what may happen is bounded.
        text = call("./pan", "-E", "-m1000000", "-w22").stdout
        errors = re.search(r"errors: (\d+)", text)
        states = re.search(r"(\d+) states, stored", text)
        if not errors or not states:
            raise RuntimeError("the search did not end: " + text)
        found = None
        if errors[1] != "0":
            text = call("spin", *defines, "-t", "-r", "-s", "weights.pml").stdout
            found = re.search(r"BROKEN (\w+)", text)
            found = found[1] if found else "an assertion"
        complete = "Search not completed" not in text and "max search depth too small" not in text
        return Result(found, int(states[1]), complete or found is not None, text)


# All that may happen, in settings that are searched whole in minutes.
WHOLE = (
    {**SEALING, "NEWEST": 3},
    {**BARRIER, "LEASE": 1},
    {**RETURNS, "REIGNS": 2, "LOSSES": 0},
    {**TWO_ROLLING, "MEMBERS": 2},
)



def main():
    lacks = missing()
    if lacks:
        sys.exit("weights_model: " + lacks)
    code = 0
    for settings in WHOLE:
        result = search(settings, memory_mb=int(os.environ.get("MODEL_MB", "6000")), optimise="-O2")
        words = ", ".join("%s %d" % item for item in settings.items()).lower()
        print("%s: %d states%s: %s" % (words, result.states, "" if result.complete else ", NOT ALL OF THEM",
                                       result.found or "every promise holds"), flush=True)
        if result.found:
            print(result.text)
        code |= result.found is not None or not result.complete
    sys.exit(code)


if __name__ == "__main__":
    main()
