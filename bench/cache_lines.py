"""The cache lines of data that a pull touches at both ends, stage by stage, by the addresses that valgrind's lackey prints."""
import collections
import re
import subprocess

LINE_BYTES = 64
PROGRAM_AT = 0x108000  # Where valgrind places a program whose place is free.
# A pull does the same as the one before it, and all that comes before the first pull is passed over.
PULLS = 64


def symbols(program):
    """{the plain name of a function: its offset in the program}"""
    listed = subprocess.run(["nm", "-C", program], check=True, stdout=subprocess.PIPE, text=True).stdout
    return {name: int(offset, 16) for offset, kind, name in (line.split(None, 2) for line in listed.splitlines()
                                                            if re.match(r"[0-9a-f]+ [Tt] ", line))}


def entries(found, stages):
    """({offset: stage}, the offset where counting begins, and where it ends). `found`: symbols(); `stages`: (stage, pattern of
    its function)"""
    at = {offset: stage for name, offset in found.items() for stage, pattern in stages
          if pattern and re.search(pattern, name) and "[clone" not in name and "lambda" not in name}
    return at, found["CountFromHere"], found["CountToHere"]


def accesses(trace, begin, end):
    """Of what runs between the two: (an offset of code, or None; an address of data, or None; its bytes)."""
    mark = b"I  %08x," % (PROGRAM_AT + begin)
    for line in trace:
        if line.startswith(mark):
            break
    else:
        raise RuntimeError("counting never began: does valgrind place the program elsewhere?")
    for line in trace:
        place = line[2:].split(b",")
        if len(place) != 2:
            continue
        address = int(place[0], 16)
        if line[:1] != b"I":
            yield None, address, int(place[1])
        elif address == PROGRAM_AT + end:
            return
        else:
            yield address - PROGRAM_AT, None, 0


def touched(seen, at, first):
    """{stage: the lines of data that it touches, "pull": those of all}, of all pulls. `seen`: accesses(); a pull begins with
    `first`, and a stage where its function is called."""
    sums = collections.Counter()
    of_pull, of_stage, stage = set(), set(), None

    def close(what, lines):
        sums[what] += len(lines)
        lines.clear()

    for code, data, size in seen:
        entered = None if code is None else at.get(code)
        if entered is not None and entered != stage:
            if stage is not None:
                close(stage, of_stage)
                if entered == first:
                    close("pull", of_pull)
            stage = entered
        elif data is not None and stage is not None:
            lines = range(data // LINE_BYTES, (data + size - 1) // LINE_BYTES + 1)
            of_stage.update(lines)
            of_pull.update(lines)
    if stage is not None:
        close(stage, of_stage)
        close("pull", of_pull)
    return sums


def count(program, path, stages):
    """touched(), a pull."""
    at, begin, end = entries(symbols(program), stages)
    with subprocess.Popen(["valgrind", "--tool=lackey", "--trace-mem=yes", "--log-fd=1", program, path, str(PULLS)],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as traced:
        sums = touched(accesses(traced.stdout, begin, end), at, stages[0][0])
        for _ in traced.stdout:  # To its end, so that the program does not fail for want of a reader.
            pass
    return {what: lines / PULLS for what, lines in sums.items()}
