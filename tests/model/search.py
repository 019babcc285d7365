"""Searches every order of a model's steps, and prints what is found with all of its rules and without some."""
import collections
import sys


class Broken(Exception):
    """A promise is."""


def search(start, steps, check_end):
    """(states, None), or (states, what was found and the way there). `steps` gives what may come next: (label, state)."""
    came = {start: None}
    todo = collections.deque([start])
    while todo:
        state = todo.popleft()
        some = False
        try:
            for label, after in steps(state):
                some = True
                if after not in came:
                    came[after] = (state, label)
                    todo.append(after)
            if not some:
                check_end(state)
        except Broken as broken:
            way = []
            while came[state]:
                state, label = came[state]
                way.append(label)
            return len(came), "%s, after %d steps: %s" % (broken, len(way), "; ".join(reversed(way)))
    return len(came), None


def main(arguments, rules, whole, setting_of):
    """`whole(left_out)` and `setting_of(rule)` search in the whole setting, and without a rule where that is found."""
    unknown = set(arguments) - set(rules) - {"--all"}
    if unknown:
        sys.exit("there is no rule %s; they are %s" % (", ".join(sorted(unknown)), ", ".join(rules)))
    runs = [(arguments, lambda: whole(arguments))]
    if "--all" in arguments:
        runs = [([], lambda: whole([]))] + [([rule], lambda rule=rule: setting_of(rule)) for rule in rules]
    wrong = 0
    for left_out, run in runs:
        states, found = run()
        print("%s: %d states, %s" % ("without " + ", ".join(left_out) if left_out else "with all rules", states, found or "nothing found"), flush=True)
        wrong += bool(found) == (not left_out)
    return 1 if wrong else 0
