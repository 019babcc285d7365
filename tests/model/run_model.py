#!/usr/bin/env python3
"""Every order of fetches of two keys, some together in a run and some alone, over a link that may break.

  run_model.py [RULE ...]   without these rules; nothing is found with all of them
  run_model.py --all        with all rules, then without each

One consumer, one producer. A run is asked for and answered as one: with what is here of its keys. It checks that each key's tensors are
delivered in the order of their Sends, to its fetches in the order in which they were made, each once, and that nothing is lost or left
standing.
"""
import collections
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import search as every_order  # noqa: E402
from search import Broken  # noqa: E402

RULES = {
    "alone": "a key of which something is asked for is in no run",
    "held": "what is fetched of a key in a run waits until the run is over",
    "first": "a key that was not here is asked for before what was held",
    "whole": "a run whose answer has one tensor that its caller cannot have is refused whole",
    "early": "and so is one of whose fetches one ends early",
    "back": "and all that was taken for it goes back",
    "cancel": "the producer hears that before it hears of its keys again",
    "ends": "a run ends with its link, since its name does: over the next its keys are asked for alone",
    "missing": "what is not here is asked for alone, and not waited for",
}
KEYS = "ab"
LEFT_OUT = set()

# fetches: (key, state) in the order in which they were made; w waits, c cancelled, or the number of its tensor.
# asks: (id, kind, line, state). Kind P of one key, or R, a run; its line is the fetches that wait for it, of a run one for each key. State
# q to be said, A asked, L cancelled. held: fetches of keys in the run, in their order.
# up: the link. up_words, down_words: on their way. here: of each key what is sent and not taken. slots: (id, T takes or K keeps, what).
# many, plain, cancels, misfits, breaks, sends: what may still come.
State = collections.namedtuple("State", "fetches asks held up up_words down_words here slots next many plain cancels misfits breaks sends sent")


def has(rule):
    return rule not in LEFT_OUT


def put(row, index, value):
    return row[:index] + (value,) + row[index + 1:]


def without(rows, ident):
    return tuple(row for row in rows if row[0] != ident)


def say(state, word):
    return state._replace(up_words=state.up_words + (word,)) if state.up else state


def run_of(state):
    return next((ask for ask in state.asks if ask[1] == "R" and ask[3] != "L"), None)


def key_of(state, fetch):
    return state.fetches[fetch][0]


def ask_alone(state, fetch, first=False):
    """Lines up a fetch: held by a run, in the line of an ask, or with an ask of its own."""
    key = key_of(state, fetch)
    run = run_of(state)
    if run and has("held") and key in [key_of(state, one) for one in run[2]]:
        return state._replace(held=state.held + (fetch,))
    for index, ask in enumerate(state.asks):
        if ask[1] == "P" and ask[3] != "L" and key_of(state, ask[2][0]) == key:
            return state._replace(asks=put(state.asks, index, ask[:2] + (ask[2] + (fetch,), ask[3])))
    ident = state.next
    after = state._replace(next=ident + 1, asks=state.asks + ((ident, "P", (fetch,), "A" if state.up else "q"),))
    return say(after, ("REQUEST", ident, key))


def fetch_many(state):
    made = len(state.fetches)
    after = state._replace(many=state.many - 1, fetches=state.fetches + tuple((key, "w") for key in KEYS))
    busy = {key_of(state, fetch) for ask in state.asks if ask[3] != "L" for fetch in ask[2]} if has("alone") else set()
    if run_of(state):
        busy |= set(KEYS)
    together = tuple(made + i for i, key in enumerate(KEYS) if key not in busy) if state.up else ()
    if together:
        after = after._replace(next=after.next + 1, asks=after.asks + ((after.next, "R", together, "A"),))
        after = say(after, ("RUN", state.next, tuple(key_of(after, fetch) for fetch in together)))
    for fetch in range(made, made + len(KEYS)):
        if fetch not in together:
            after = ask_alone(after, fetch)
    return after


def run_over(state, alone):
    """The run is over; `alone`: its keys that are asked for alone. What was held comes behind them."""
    held, after = state.held, state._replace(held=())
    order = alone + held if has("first") else held + alone
    for fetch in order:
        after = ask_alone(after, fetch)
    return after


def refuse(state, run):
    """Gives a run up: its keys are asked for alone."""
    waiting = tuple(fetch for fetch in run[2] if state.fetches[fetch][1] == "w")
    left = state._replace(asks=without(state.asks, run[0]) + ((run[0], "R", (), "L"),))
    if has("cancel"):
        return run_over(say(left, ("CANCEL", run[0])), waiting)
    return say(run_over(left, waiting), ("CANCEL", run[0]))


def deliver(state, fetch, tensor):
    key = key_of(state, fetch)
    got = [one[1] for one in state.fetches if one[0] == key and isinstance(one[1], int)]
    if tensor in got:
        raise Broken("a tensor is delivered twice")
    if any(one > tensor for one in got) or any(
            one == (key, "w") for one in state.fetches[:fetch]):
        raise Broken("the order of a key is broken")
    return state._replace(fetches=put(state.fetches, fetch, (key, tensor)))


def consumer(state):
    if state.many:
        yield "fetches both", fetch_many(state)
    if state.plain:
        after = state._replace(plain=0, fetches=state.fetches + (("a", "w"),))
        yield "fetches a", ask_alone(after, len(state.fetches))
    if state.cancels:
        for ask in state.asks:
            if ask[3] == "L":
                continue
            after = state._replace(cancels=0)
            if ask[1] == "R":
                for fetch in ask[2]:
                    after = after._replace(fetches=put(after.fetches, fetch, (key_of(state, fetch), "c")))
                after = after._replace(asks=without(after.asks, ask[0]) + ((ask[0], "R", (), "L"),))
                yield "cancels its run", run_over(say(after, ("CANCEL", ask[0])), ())
                first = state._replace(cancels=0, fetches=put(state.fetches, ask[2][0], (key_of(state, ask[2][0]), "c")))
                yield "cancels one of a run", refuse(first, ask) if has("early") else first
                continue
            front = ask[2][0]
            after = after._replace(fetches=put(after.fetches, front, (key_of(state, front), "c")))
            rest = without(after.asks, ask[0])
            if len(ask[2]) > 1:  # The next one takes its place.
                yield "cancels the first", after._replace(asks=rest + (ask[:2] + (ask[2][1:], ask[3]),))
            elif ask[3] == "q":
                yield "cancels what was not said", after._replace(asks=rest)
            else:
                yield "cancels", say(after._replace(asks=rest + (ask[:2] + ((), "L"),)), ("CANCEL", ask[0]))
    if state.up and state.breaks:
        after = state._replace(up=0, breaks=0, up_words=(), down_words=())
        run = run_of(state)
        yield "loses the link", refuse(after, run) if run and has("ends") else after
    if not state.up:
        after = state._replace(up=1)
        for ask in state.asks:
            if ask[1] == "R" and ask[3] == "A":
                raise Broken("a run is asked for by a name of another link")
            if ask[3] != "q":
                word = ("CANCEL", ask[0]) if ask[3] == "L" else ("REQUEST", ask[0], key_of(state, ask[2][0]))
                after = say(after, word)
        after = say(after, ("REPLAYED", tuple(ask[0] for ask in state.asks if ask[3] != "q")))
        for ask in state.asks:
            if ask[3] == "q":
                after = say(after, ("REQUEST", ask[0], key_of(state, ask[2][0])))
        yield "comes again", after._replace(asks=tuple(ask[:3] + ("A",) if ask[3] == "q" else ask for ask in after.asks))
    if state.down_words:
        word, after = state.down_words[0], state._replace(down_words=state.down_words[1:])
        yield from hears(after, word)


def hears(state, word):
    ask = next((one for one in state.asks if one[0] == word[1]), None)
    if word[0] == "GONE":
        yield "hears GONE", state._replace(asks=without(state.asks, word[1]))
    elif ask is None or ask[3] == "L":
        yield "hears what is over", state
    elif word[0] == "TENSOR":
        after = deliver(state, ask[2][0], word[2])
        after = say(after._replace(asks=without(after.asks, ask[0])), ("ACCEPT", ask[0]))
        rest = ask[2][1:]
        if rest:
            after = after._replace(next=after.next + 1, asks=after.asks + ((after.next, "P", rest, "A"),))
            after = say(after, ("REQUEST", after.next - 1, key_of(after, rest[0])))
        yield "takes a tensor", after
    else:
        if state.misfits and any(tensor is not None for tensor in word[2]):
            after = state._replace(misfits=0)
            if has("whole"):
                yield "refuses a run", refuse(after, ask)
            else:  # It keeps the rest, and asks for that one again.
                first = next(i for i, tensor in enumerate(word[2]) if tensor is not None)
                yield "refuses one of a run", answered(after, ask, put(word[2], first, None))
        yield "takes a run", answered(state, ask, word[2])


def answered(state, ask, tensors):
    after, alone = say(state._replace(asks=without(state.asks, ask[0])), ("ACCEPT", ask[0])), ()
    for fetch, tensor in zip(ask[2], tensors):
        if state.fetches[fetch][1] == "c":
            continue
        if tensor is None:
            alone += (fetch,)
        else:
            after = deliver(after, fetch, tensor)
    return run_over(after, alone)


def tell(state, word):
    return state._replace(down_words=state.down_words + (word,)) if state.up else state


def give_back(state, key, tensor):
    """The take that waits longest gets it; else it waits in its old place."""
    for index, slot in enumerate(state.slots):
        if slot[1] == "T" and slot[2] == key:
            return tell(state._replace(slots=put(state.slots, index, (slot[0], "K", ((key, tensor),)))), ("TENSOR", slot[0], tensor))
    at = KEYS.index(key)
    return state._replace(here=put(state.here, at, tuple(sorted(state.here[at] + (tensor,)))))


def take(state, key):
    at = KEYS.index(key)
    if not state.here[at]:
        return state, None
    return state._replace(here=put(state.here, at, state.here[at][1:])), state.here[at][0]


def producer(state):
    for at, key in enumerate(KEYS):
        if state.sends[at]:
            after = state._replace(sends=put(state.sends, at, state.sends[at] - 1), sent=put(state.sent, at, state.sent[at] + 1))
            yield "sends " + key, give_back(after, key, after.sent[at])
    if state.up and state.up_words:
        word, after = state.up_words[0], state._replace(up_words=state.up_words[1:])
        yield "is told " + word[0], told(after, word)


def told(state, word):
    slot = next((one for one in state.slots if one[0] == word[1]), None)
    if word[0] == "REQUEST":
        if slot:  # Said again.
            return tell(state, ("TENSOR", word[1], slot[2][0][1])) if slot[1] == "K" else state
        after, tensor = take(state, word[2])
        if tensor is None:
            return after._replace(slots=after.slots + ((word[1], "T", word[2]),))
        return tell(after._replace(slots=after.slots + ((word[1], "K", ((word[2], tensor),)),)), ("TENSOR", word[1], tensor))
    if word[0] == "RUN":
        after, tensors = state, []
        for key in word[2]:
            after, tensor = take(after, key)
            tensors.append(tensor)
        if None in tensors and not has("missing"):
            # Keeps what is here and says nothing until all of it is.
            for key, tensor in zip(word[2], tensors):
                after = after if tensor is None else give_back(after, key, tensor)
            return after
        kept = tuple((key, tensor) for key, tensor in zip(word[2], tensors) if tensor is not None)
        return tell(after._replace(slots=after.slots + ((word[1], "K", kept),)), ("RUN", word[1], tuple(tensors)))
    if word[0] == "CANCEL":
        after = state._replace(slots=without(state.slots, word[1]))
        if slot and slot[1] == "K":
            for key, tensor in slot[2] if has("back") or len(slot[2]) < 2 else slot[2][:1]:
                after = give_back(after, key, tensor)
        return tell(after, ("GONE", word[1]))
    if word[0] == "ACCEPT":
        return state._replace(slots=without(state.slots, word[1]))
    # REPLAYED: what it keeps and is not named was accepted; what it takes for nobody ends.
    return state._replace(slots=tuple(one for one in state.slots if one[0] in word[1]))


def check_end(state):
    for at, key in enumerate(KEYS):
        delivered = {one[1] for one in state.fetches if one[0] == key and isinstance(one[1], int)}
        if set(range(1, state.sent[at] + 1)) - delivered - set(state.here[at]):
            raise Broken("a tensor is lost")
        if state.here[at] and (key, "w") in state.fetches:
            raise Broken("a fetch waits for what is here")


def steps(state):
    yield from consumer(state)
    yield from producer(state)


def search(left_out=()):
    """(states, None), or (states, what was found and the way there)."""
    LEFT_OUT.clear()
    LEFT_OUT.update(left_out)
    start = State((), (), (), 1, (), (), ((),) * 2, (), 0, 2, 1, 1, 1, 1, (2, 1), (0, 0))
    return every_order.search(start, steps, check_end)

def main(arguments):
    return every_order.main(arguments, RULES, search, lambda rule: search([rule]))

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
