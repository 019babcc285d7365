#!/usr/bin/env python3
"""Every order of reads under a grant of a region, while its owner closes it, opens another one, dies, or its number goes to another process.

  grant_model.py [RULE ...]   without these rules; nothing is found with all of them
  grant_model.py --all        with all rules, then without each in its setting

(docs/decisions/0082-grants.md.) A call of the kernel reads the memory of one process, the one that had the number when it began: two spans and the region's mark.
Or the reader has read by which number a process has the region's segment, and has mapped what that process, or who has its number by then, has by it. That outlives
them, and a call reads the mark alone, of who has the number now (0085). That a reader looks at the mark once before its first copy is no rule: the mark behind each says more.
The owner waits for no reader: it clears the mark and lets go of the memory, which then holds something else. What a reader delivers is what
the region held while it was open.
"""
import collections
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import search as every_order  # noqa: E402
from search import Broken  # noqa: E402

# Why each rule is there, and the smallest setting that finds its absence: closes, openings, deaths, forks, lies.
RULES = {
    "after": ("the mark is read after the bytes, and not before", (1, 0, 0, 0, 0)),
    "looked": ("and compared with that of the grant", (1, 0, 0, 0, 0)),
    "cleared": ("the owner clears the mark before it lets go of the memory", (1, 0, 0, 0, 0)),
    "fresh": ("no mark is used twice, by whatever process", (1, 1, 0, 0, 0)),
    "same": ("the mark is read in the call that reads the bytes, so of the same process, and not in a page that outlives it", (0, 0, 1, 0, 0)),
    "wiped": ("a child of the owner has no marks", (0, 0, 1, 1, 0)),
    "kept": ("an opening keeps its segment, so that no other one has its number", (0, 0, 0, 0, 0)),
    "attested": ("whose process it is stands in a file that only that process can have made", (0, 0, 0, 0, 1)),
}
WHOLE = (1, 1, 1, 1, 1)
LEFT_OUT = set()

# Processes: O the owner, C its child, X any other that gets its number, V another owner, whose memory has bytes that a liar chose.
# reader: - before its grant, G with it, P it has read where the segment is, 0 1 2 so much is read, M the mark is seen (first, or last), D delivered, A asks the owner instead.
# call: the process of which it reads; M and a process: what that had as its segment is mapped. place, segment: whose the number is that it has read, and what that is now. whole: all was the region's. mark: what it has seen. region, word, memory: the owner's; memory and
# word of the child. number: who has the owner's. page: the mark in a page that both map.
State = collections.namedtuple("State", "reader call whole mark open word memory child_word child_memory number page place segment closes openings deaths forks lies")


def has(rule):
    return rule not in LEFT_OUT


def memory_of(state, process):
    """Whether it is the region's, opened once."""
    # A child has its parent's descriptors and segments.
    return {"O": state.memory, "C": state.child_memory, "MO": state.memory, "MC": state.memory}.get(process, "other") == "first"


def word_of(state, process):
    if not has("same"):
        return state.page
    if process[0] == "M":
        process = state.number
    # V has a copy of the mark that the liar sent there.
    return {"O": state.word, "C": state.child_word, "V": 1}.get(process, None)


def reader(state):
    if state.reader == "-":
        yield "gets a grant", state._replace(reader="G", call="number")
        if state.lies:
            taken = not has("attested")
            yield "hears a lie", state._replace(reader="G" if taken else "A", call="V", lies=0)
    elif state.reader == "G":
        process = state.number if state.call == "number" else state.call
        after = state._replace(reader="0", call=process)
        if not has("after"):
            after = after._replace(mark=word_of(after, process))
        yield "calls", after
        if state.call == "number":
            place = "another's" if state.open == "again" else "the region's"
            yield "reads where the segment is", after._replace(reader="P", call="number", place=place)
    elif state.reader == "P":
        process = state.number
        if process == "O" and (state.place, state.segment) != ("the region's", "the region's"):
            process = "X"
        mapped = "M" + process
        yield "maps it", state._replace(reader="0", call=mapped, mark=state.mark and word_of(state, mapped))
    elif state.reader in "01":
        whole = state.whole and memory_of(state, state.call)
        yield "reads", state._replace(reader=chr(ord(state.reader) + 1), whole=whole)
    elif state.reader == "2":
        mark = word_of(state, state.call) if has("after") else state.mark
        good = mark == 1 or not has("looked")
        if good and not state.whole:
            raise Broken("bytes are delivered that the region never held")
        yield ("delivers", state._replace(reader="D")) if good else ("asks the owner", state._replace(reader="A"))


def owner(state):
    if state.number != "O":
        return
    if state.open == "open" and state.closes:
        after = state._replace(open="closed", closes=0)
        if has("cleared"):
            after = after._replace(word=0, page=0)
        yield "closes", after
    if state.open == "closed":
        yield "uses the memory again", state._replace(open="gone", memory="other")
    # Its mark is cleared before an opening lets go of it.
    if state.segment == "the region's" and (state.open in ("gone", "again") or not has("kept")):
        yield "has another segment by that number", state._replace(segment="another's")
    if state.open == "gone" and state.word == 1:
        yield "clears the mark late", state._replace(word=0, page=0)
    if state.open == "gone" and state.openings:
        mark = 2 if has("fresh") else 1
        yield "opens another", state._replace(open="again", openings=0, word=mark, page=mark)
    if state.forks and state.open == "open":
        yield "forks", state._replace(forks=0, child_memory="other", child_word=None if has("wiped") else state.word)
    if state.deaths:
        for heir in "XC" if state.child_memory else "X":
            # The memory of a call that has begun stays until it ends.
            yield "dies, and its number goes to " + heir, state._replace(deaths=0, number=heir)


def check_end(state):
    quiet = state.closes and state.deaths == WHOLE[2] and state.call != "V"
    if quiet and state.reader == "A":
        raise Broken("nothing has happened, and it asks")
    if state.reader not in "DA":
        raise Broken("it stands still")


def start_of(setting):
    return State("-", "", True, None, "open", 1, "first", None, None, "O", 1, None, "the region's", *setting)


def steps(state):
    yield from reader(state)
    yield from owner(state)


def search(setting=WHOLE, without=()):
    """(states, None), or (states, what was found and the way there)."""
    LEFT_OUT.clear()
    LEFT_OUT.update(without)
    return every_order.search(start_of(setting), steps, check_end)


def main(arguments):
    return every_order.main(arguments, RULES, lambda without: search(WHOLE, without), lambda rule: search(RULES[rule][1], [rule]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
