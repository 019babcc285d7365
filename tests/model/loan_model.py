#!/usr/bin/env python3
"""Every order of one fetch over shared memory whose links break and whose session may end at any moment, while either side stands still.

  loan_model.py [RULE ...]   without these rules; nothing is found with all of them
  loan_model.py --all        with all rules, then without each in its setting

The producer answers by value, or lends its own memory, which the consumer reads in two steps and then checks. A link has two words of the
slot: `accepted` and `loan`. Memory that the producer has let go of, or given back, may hold something else from the next step on. It checks
that no wrong byte is delivered, that nothing is delivered and given back, and that nothing is let go of that was never delivered.
"""
import collections
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import search as every_order  # noqa: E402
from search import Broken  # noqa: E402

# Why each rule is there, and the smallest setting that finds its absence: breaks, ends of the session, cancels, goodbyes.
RULES = {
    "check": ("the consumer looks at the loan after it has read", (0, 1, 0, 0)),
    "after": ("and not before", (0, 1, 0, 0)),
    "clear": ("the producer ends the loan before it lets go of the memory", (0, 1, 0, 0)),
    "swap": ("who ends a loan does it by compare-and-swap: the consumer takes what it checks", (0, 1, 0, 0)),
    "taken": ("what the consumer has taken does not go back", (0, 1, 0, 0)),
    "former": ("a new link begins with the words of the one before it", (1, 0, 0, 1)),
    "lent": ("a loan outlives its link, until the consumer comes by another", (1, 0, 0, 0)),
    "named": ("what a link has brought is asked for again by the same generation, and is not taken anew", (1, 0, 0, 0)),
    "again": ("nothing is answered over a link before it is asked for there", (1, 0, 0, 1)),
    "accepted": ("a goodbye gives back what was not accepted, and that alone", (0, 0, 0, 1)),
    "farewell": ("who has no link, and is refused another or closed, says farewell", (1, 0, 0, 1)),
    "unnamed": ("what is not asked for again, and was not accepted over the former link, goes back", (1, 0, 1, 0)),
    "last": ("a session that ends gives back what was not accepted over a link that the consumer has left", (1, 1, 0, 0)),
    "left": ("and lets go of it where the consumer may still accept it", (0, 1, 0, 0)),
}
WHOLE = (2, 1, 1, 1)
LEFT_OUT = set()

# Consumer. ask: A asked, X to be asked again, 0 1 2 how far it has read, T has taken it, D delivered, L cancelled, C to be cancelled again,
# U ended with its session, G gone. whole: all that it read was the tensor. cup, pup: the link, as each sees it.
# Producer. serve: - free, Y the tensor is here, W lent, K sent. session: 1 lasts, 2 ended by a goodbye, 3 without a link, 0 with one.
# fate: h held, l let go, b back, of each take. intact: its memory.
State = collections.namedtuple("State", """
    ask whole link cup to_producer to_consumer loan accepted
    serve over_link named pup bye session fate intact
    breaks ends cancels goodbyes""")
LINKS = WHOLE[0] + 1


def has(rule):
    return rule not in LEFT_OUT


def put(row, index, value):
    return row[:index] + (value,) + row[index + 1:]


def say(state, word):
    return state._replace(to_producer=state.to_producer + (word,))


def delivered(state):
    if not state.whole:
        raise Broken("a wrong byte is delivered")
    if "b" in state.fate:
        raise Broken("it is delivered, and went back")
    return state._replace(ask="D")


def look(state):
    """After its read, or before it where the rule is left out: whether the memory is lent still."""
    return state.loan[state.link] in "LT" if has("swap") else state.loan[state.link] != "E"


def consumer(state):
    at = state.link
    if state.cup:
        if state.to_consumer:
            word, after = state.to_consumer[0], state._replace(to_consumer=state.to_consumer[1:])
            if state.ask == "A" and word == "VALUE":
                yield "accepts", delivered(after)._replace(accepted=put(after.accepted, at, 1))
            elif state.ask == "A" and word == "LOAN":
                yield "begins to read", after._replace(ask="0" if has("after") or look(after) else "U")
            elif state.ask == "L" and word == "GONE":
                yield "is gone", after._replace(ask="G")
            else:
                yield "hears what is over", after
        if state.ask in "01":
            yield "reads", state._replace(ask=chr(ord(state.ask) + 1), whole=state.whole and state.intact)
        if state.ask == "2":
            if not has("check") or not has("after") or look(state):
                loan = put(state.loan, at, "T") if has("swap") else state.loan
                yield "takes", say(delivered(state._replace(loan=loan)), "READ")
            else:
                yield "finds the loan ended", state._replace(ask="U")
        if state.cancels and state.ask in "A01":
            yield "cancels", say(state._replace(ask="L", cancels=0), "CANCEL")
        if state.goodbyes and state.ask in "A012LD":
            yield "says goodbye", state._replace(ask="D" if state.ask == "D" else "G", cup=0, goodbyes=0, bye=1)
        if state.breaks or not state.pup:
            after = state._replace(cup=0, breaks=state.breaks - (1 if state.pup else 0))
            again = {"A": "X", "0": "X", "1": "X", "2": "X", "L": "C"}
            yield "sees the end of the link", after._replace(ask=again.get(state.ask, state.ask))
        return
    if state.bye or at + 1 == LINKS:
        return
    if state.goodbyes and state.ask in "XC":
        yield "is refused, or closed", state._replace(ask="G", link=LINKS - 1, goodbyes=0, bye=int(has("farewell")))
    if state.ask == "C":
        yield "has waited for too long", state._replace(ask="G")
    if state.ask in "XCDG" and not state.pup:
        after = state._replace(link=at + 1, whole=True, cup=1, pup=1, to_producer=(), to_consumer=())
        if state.session != 1:
            if state.ask in "XC":
                yield "hears that its session is over", state._replace(ask="U")
        else:
            after = resumed(after, at)
            if after.ask == "X":
                after = say(after._replace(ask="A"), "REQUEST")
            elif after.ask == "C":
                after = say(after._replace(ask="L"), "CANCEL")
            yield "comes again", say(after, "REPLAYED")


def resumed(state, former):
    state = state._replace(named=0)
    if not has("former"):
        return state._replace(over_link=former + 1)
    if state.serve == "K" and state.accepted[former]:
        return ended(state, "l")
    if state.serve == "W":
        return loan_ended(state, "Y")
    return state


def ended(state, how):
    if how == "b" and state.ask == "D" and has("swap"):
        raise Broken("it is delivered, and went back")
    return state._replace(serve="-", fate=state.fate[:-1] + how)


def loan_ended(state, then):
    """The producer's half of the compare-and-swap. `then`: b it goes back, Y it stays."""
    word = state.loan[state.over_link]
    if word == "T" and has("taken"):
        return ended(state, "l")
    if has("clear") and word == "L":
        state = state._replace(loan=put(state.loan, state.over_link, "E"))
    return ended(state, "b") if then == "b" else state._replace(serve="Y")


def session_ended(state):
    left = not state.cup
    after = state._replace(session=3 if left else 0, pup=0)
    if after.serve == "W":
        after = loan_ended(after, "b")
    elif after.serve == "Y":
        after = ended(after, "b")
    elif after.serve == "K":
        final = (left or not has("left")) and has("last")
        after = ended(after, "b" if final and not after.accepted[after.over_link] else "l")
    return after


def producer(state):
    if state.intact and state.serve == "-" and state.fate and state.fate[-1] in "lb":
        yield "its memory is used again", state._replace(intact=False)
    if state.session != 1:
        return
    if state.ends:
        yield "ends the session", session_ended(state._replace(ends=0))
    if state.bye:
        after = state._replace(bye=0, session=2, pup=0)
        if after.serve == "W":
            after = loan_ended(after, "b")
        elif after.serve == "K" and (after.accepted[after.over_link] or not has("accepted")):
            after = ended(after, "l")
        elif after.serve in "YK":
            after = ended(after, "b")
        yield "hears the goodbye", after
        return
    if not state.cup and state.pup:
        after = state._replace(pup=0)
        if state.serve == "W" and not has("lent"):
            after = ended(after, "b")
        yield "sees the end of the link", after
    if not state.pup:
        return
    if state.breaks:
        after = state._replace(pup=0, breaks=state.breaks - 1)
        if state.serve == "W" and not has("lent"):
            after = ended(after, "b")
        yield "ends the link", after
    if state.serve == "Y" and (state.named or not has("again")):
        for kind, serve in (("VALUE", "K"), ("LOAN", "W")):
            after = state._replace(serve=serve, over_link=state.link, to_consumer=state.to_consumer + (kind,))
            if kind == "LOAN":
                after = after._replace(loan=put(after.loan, state.link, "L"))
            yield "answers by " + kind.lower(), after
    if state.to_producer:
        yield "hears " + state.to_producer[0], hears(state._replace(to_producer=state.to_producer[1:]), state.to_producer[0])


def hears(state, word):
    if word == "REQUEST":
        if state.serve == "-" or not has("named"):
            if "l" in state.fate or (state.serve != "-" and not has("named")):
                raise Broken("it is taken again, and was let go of")
            return state._replace(serve="Y", named=1, fate=state.fate + "h", intact=True)
        return state._replace(serve="Y", named=1)
    if word == "CANCEL":
        after = ended(state, "b") if state.serve != "-" else state
        return after._replace(to_consumer=after.to_consumer + ("GONE",))
    if word == "READ":
        return ended(state, "l") if state.serve == "W" else state
    if state.serve != "-" and not state.named:  # REPLAYED.
        return ended(state, "l" if state.serve == "K" and not has("unnamed") else "b")
    return state


def check_end(state):
    if state.session == 1 and state.ask not in "DGU" and state.link + 1 < LINKS:
        raise Broken("it stands still with the fetch in " + state.ask)
    if state.ask == "D" and "h" not in state.fate and "l" not in state.fate:
        raise Broken("it was delivered, and went back")
    if state.session == 1 and state.ask in "GU" and "h" in state.fate:
        raise Broken("it is kept for nobody")
    # What was sent by value may be lost with a session that the producer ends while the consumer has a link.
    if state.ask in "GU" and state.session and "l" in state.fate:
        raise Broken("it is lost")


def start_of(setting):
    breaks, ends, cancels, goodbyes = setting
    return State("A", True, 0, 1, ("REQUEST", "REPLAYED"), (), ("-",) * LINKS, (0,) * LINKS,
                 "-", 0, 0, 1, 0, 1, "", True, breaks, ends, cancels, goodbyes)


def steps(state):
    yield from consumer(state)
    yield from producer(state)


def search(setting=WHOLE, without=()):
    """(states, None), or (states, what was found and the way there)."""
    LEFT_OUT.clear()
    LEFT_OUT.update(without)
    return every_order.search(start_of(setting), steps, check_end)

def main(arguments):
    return every_order.main(arguments, RULES, lambda without: search(WHOLE, without), lambda rule: search(RULES[rule][1], [rule]))

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
