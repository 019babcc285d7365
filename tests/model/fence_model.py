#!/usr/bin/env python3
"""Every order of two fetches that use one slot, one after the other, while bytes go over two carriers of an epoch, and what may break
breaks: a carrier, the link that speaks, and with it the epoch. The next epoch opens while the old one's carriers still drain.

  fence_model.py [RULE ...]   without these rules; nothing is found with all of them
  fence_model.py --all        with all rules, then without each

A rule is what `RULES` says. The model knows one slot: a fetch is (generation, attempt), and its tensor two parts. It checks that no part
lands in memory that its owner has back, that what is delivered has landed whole and once, that the producer takes no second tensor for a
request whose first it has let go, and that in the end each tensor was accepted or is back in its place. No producer restarts in it.
"""
import collections
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import search as every_order  # noqa: E402
from search import Broken  # noqa: E402

# Why each rule is there, and the smallest setting that finds its absence: fetches, breaks of the epoch and of a carrier, cancels.
RULES = {
    "attempt": ("a part says for which attempt it was sent", (1, 0, 1, 0)),
    "generation": ("a part says for which use of the slot it was sent", (2, 0, 0, 1)),
    "carrier": ("memory that LOST names waits for the drain of that carrier", (1, 0, 1, 1)),
    "quiet": ("GONE waits until each write of the request is acknowledged or its carrier is broken", (1, 0, 0, 1)),
    "epoch": ("an epoch ends for all its carriers at once", (1, 1, 0, 1)),
    "stop": ("the next attempt waits until the one before is quiet", (1, 0, 1, 1)),
    "lost": ("the producer says which carrier it has lost, before any GONE", (1, 0, 1, 1)),
    "replayed": ("REPLAYED waits until the last fenced request was said again", (1, 1, 0, 0)),
    "unnamed": ("what REPLAYED finds unnamed is let go of", (2, 1, 0, 1)),
}
WHOLE = (2, 1, 1, 1)
LEFT_OUT = set()

# ---- One state ----
# Consumer. ask: - free, A asked, B announced, L leaving, X fenced. canc: it was cancelled.
# memory: the generations whose memory is exposed. Of each generation: parts landed (bits), times delivered.
# Carriers: 2 * epoch + which. fly and arrived hold (generation, attempt, part).
# Producer. serve: - free, M is placed, K kept, Y waits to be named, W waits to be quiet, E ends. taken, of each generation: 0 no, 1 held,
# 2 let go, 3 given back.
State = collections.namedtuple("State", """
    ask gen att got due canc gone wait seen dead epoch up replayed memory landed delivered
    to_producer to_consumer broken fly arrived
    serve pgen patt nxt todo used psees pup named taken
    asks control_breaks carrier_breaks cancels""")
CARRIERS = range(4)
START = State("-", -1, 0, 0, 0, 0, 0, frozenset(), frozenset(), frozenset(), 0, 1, 1, frozenset(), (0, 0), (0, 0),
              (), (), frozenset(), ((), (), (), ()), ((), (), (), ()),
              "-", -1, 0, 0, 0, frozenset(), frozenset(), 1, 0, (0, 0),
              *WHOLE)


def has(rule):
    return rule not in LEFT_OUT


def put(row, index, value):
    return row[:index] + (value,) + row[index + 1:]


def say(state, *word):
    return state._replace(to_producer=state.to_producer + (word,)) if state.up else state


def tell(state, *word):
    return state._replace(to_consumer=state.to_consumer + (word,)) if state.up and state.pup else state


def freed(state):
    return state._replace(ask="-", memory=state.memory - {state.gen}, canc=0, gone=0, wait=frozenset())


def carriers_of(epoch):
    return frozenset((2 * epoch, 2 * epoch + 1))


def delivered_if_whole(state):
    if state.ask not in "AB" or not state.due or state.got < state.due:
        return state
    gen = state.gen
    if state.landed[gen] != 3:
        raise Broken("generation %d is delivered although a part has not landed" % gen)
    if state.delivered[gen]:
        raise Broken("generation %d is delivered twice" % gen)
    return say(freed(state._replace(delivered=put(state.delivered, gen, 1))), "ACCEPTED", gen)


def fenced(state, carriers):
    if state.ask not in ("A", "B", "L", "X"):
        return state
    return state._replace(ask="X", wait=state.wait | {one for one in carriers if one not in state.dead})


def is_quiet(state):
    """No write of the attempt is under way on a carrier that works for the producer."""
    return not any(gen == state.pgen and att == state.patt for one in CARRIERS if one not in state.psees for gen, att, _ in state.fly[one])


# ---- What can happen ----
def network(state):
    for one in CARRIERS:
        if state.fly[one] and one not in state.dead:
            gen, att, part = state.fly[one][0]
            if gen not in state.memory:
                raise Broken("a part of generation %d, attempt %d lands in memory that its owner has back" % (gen, att))
            yield "lands on %d" % one, state._replace(
                fly=put(state.fly, one, state.fly[one][1:]), landed=put(state.landed, gen, state.landed[gen] | part),
                arrived=put(state.arrived, one, state.arrived[one] + ((gen, att),)))
    if state.carrier_breaks:
        for one in carriers_of(state.epoch):
            yield "carrier %d breaks" % one, state._replace(broken=state.broken | {one}, carrier_breaks=0)
    if state.control_breaks and state.up and state.pup:
        yield "the control link breaks", state._replace(control_breaks=0, up=0, pup=0, to_producer=(), to_consumer=())


def consumer(state):
    if state.ask == "-" and state.asks and state.up:
        gen = state.gen + 1
        yield "asks", say(state._replace(ask="A", gen=gen, att=0, got=0, due=0, asks=state.asks - 1, memory=state.memory | {gen}),
                          "REQUEST", gen, 0)
    if state.cancels and state.ask in "ABX" and not state.canc:
        after = state._replace(cancels=0, canc=1)
        if state.ask != "X":
            after = say(after._replace(ask="L"), "CANCEL", state.gen)
        yield "cancels", after
    for one in CARRIERS:
        if state.arrived[one] and one not in state.dead:
            gen, att = state.arrived[one][0]
            after = state._replace(arrived=put(state.arrived, one, state.arrived[one][1:]))
            mine = (gen == state.gen or not has("generation")) and (att == state.att or not has("attempt"))
            if state.ask in "AB" and mine:
                after = delivered_if_whole(after._replace(got=after.got + 1))
            yield "sees a part on %d" % one, after
        if one in state.broken and one not in state.seen:
            yield "sees carrier %d broken" % one, state._replace(seen=state.seen | {one})
        if one in state.seen and one not in state.dead:
            yield "has drained %d" % one, state._replace(dead=state.dead | {one}, wait=state.wait - {one}, fly=put(state.fly, one, ()),
                                                         arrived=put(state.arrived, one, ()))
    if not state.up:
        # It sees the end of the epoch, says hello, and has new links at once; the old ones drain.
        old = carriers_of(state.epoch)
        after = fenced(state, old if has("epoch") else ())
        if has("epoch"):
            after = after._replace(seen=after.seen | old)
        psees = after.psees | old if has("epoch") else after.psees
        serve = {"M": "Y", "W": "Y", "E": "-"}.get(after.serve, after.serve)
        after = after._replace(epoch=after.epoch + 1, up=1, pup=1, replayed=0, psees=psees, serve=serve, named=0)
        if after.gen >= 0 and after.ask == "-" and after.delivered[after.gen]:
            after = say(after, "ACCEPTED", after.gen)  # Before any request.
        if not has("replayed"):
            after = say(after, "REPLAYED")._replace(replayed=1)
        yield "opens the next epoch", after
    if state.ask == "X" and state.up and not state.wait:
        if state.gone:
            yield "frees what was gone", freed(state)
        elif state.canc:
            yield "cancels again", say(state, "CANCEL", state.gen)._replace(ask="L")
        else:
            yield "asks again", say(state._replace(ask="A", att=state.att + 1, got=0, due=0), "REQUEST", state.gen, state.att + 1)
    if state.up and not state.replayed and state.ask != "X":
        yield "says REPLAYED", say(state._replace(replayed=1), "REPLAYED")
    if state.up and state.to_consumer:
        yield "hears " + state.to_consumer[0][0], hears(state._replace(to_consumer=state.to_consumer[1:]), *state.to_consumer[0])


def hears(state, word, gen, *more):
    if gen != state.gen:
        return state
    if word == "LANDED" and state.ask == "A" and more[0] == state.att:
        return delivered_if_whole(state._replace(ask="B", due=2))
    if word == "GONE" and state.ask == "L":
        return freed(state)
    if word == "GONE" and state.ask == "X" and state.canc:
        return state._replace(gone=1)
    if word == "LOST":
        return fenced(state._replace(seen=state.seen | {more[0]}), (more[0],) if has("carrier") else ())
    return state


def producer(state):
    for one in CARRIERS:
        if one in state.broken and one not in state.psees:
            after = state._replace(psees=state.psees | {one})
            if has("lost") and one in state.used and state.serve != "-":
                after = tell(after, "LOST", state.pgen, one)
            if state.serve == "M" and one in state.used:
                after = after._replace(serve="Y")
            yield "producer sees carrier %d broken" % one, after
        if state.serve == "M" and state.pup and one in carriers_of(state.epoch) and one not in state.psees:
            after = state._replace(todo=state.todo + 1, used=state.used | {one})
            if one not in state.dead:
                after = after._replace(fly=put(after.fly, one, after.fly[one] + ((state.pgen, state.patt, 1 << state.todo),)))
            if after.todo == 2:
                after = tell(after._replace(serve="K"), "LANDED", state.pgen, state.patt)
            yield "posts on %d" % one, after
    if state.serve == "W" and is_quiet(state):
        yield "is quiet", placed(state, state.nxt)
    if state.serve == "E" and (is_quiet(state) or not has("quiet")):
        yield "says GONE", tell(state._replace(serve="-"), "GONE", state.pgen)
    if state.up and state.pup and state.to_producer:
        yield "takes " + state.to_producer[0][0], takes(state._replace(to_producer=state.to_producer[1:]), *state.to_producer[0])


def placed(state, attempt):
    return state._replace(serve="M", patt=attempt, todo=0, used=frozenset())


def ended(state, how):
    return state._replace(serve="-", taken=put(state.taken, state.pgen, how))


LET_GO, BACK = 2, 3


def takes(state, word, gen=None, *more):
    ours = state.serve != "-" and gen == state.pgen
    if word == "REQUEST":
        attempt = more[0]
        if ours:
            state = state._replace(named=1)
            return state._replace(serve="W", nxt=attempt) if has("stop") else placed(state, attempt)
        if state.serve != "-":
            state = ended(state, LET_GO if state.serve == "K" else BACK)
        if state.taken[gen] == LET_GO:
            raise Broken("generation %d is taken again, and its tensor was let go of" % gen)
        return placed(state._replace(pgen=gen, named=1, taken=put(state.taken, gen, 1)), attempt)
    if word == "CANCEL":
        if not ours:
            return tell(state, "GONE", gen)
        if state.serve == "E":
            return state
        return state._replace(serve="E", named=1, taken=put(state.taken, gen, BACK))
    if word == "ACCEPTED":
        return ended(state, LET_GO) if ours and state.serve == "K" else state
    if state.serve in "KY" and not state.named and has("unnamed"):  # REPLAYED.
        return ended(state, LET_GO if state.serve == "K" else BACK)
    return state


def steps(state):
    yield from network(state)
    yield from consumer(state)
    yield from producer(state)


def check_end(state):
    if state.ask != "-":
        raise Broken("it stands still with the fetch in " + state.ask)
    for gen in (0, 1):
        if state.delivered[gen] and state.taken[gen] != LET_GO:
            raise Broken("generation %d was delivered, and is kept or went back" % gen)
        if not state.delivered[gen] and state.taken[gen] not in (0, BACK):
            raise Broken("generation %d is lost" % gen)


def search(setting=WHOLE, without=()):
    """(states, None), or (states, what was found and the way there)."""
    LEFT_OUT.clear()
    LEFT_OUT.update(without)
    asks, control_breaks, carrier_breaks, cancels = setting
    start = START._replace(asks=asks, control_breaks=control_breaks, carrier_breaks=carrier_breaks, cancels=cancels)
    return every_order.search(start, steps, check_end)

def main(arguments):
    return every_order.main(arguments, RULES, lambda without: search(WHOLE, without), lambda rule: search(WHOLE, [rule]))

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
