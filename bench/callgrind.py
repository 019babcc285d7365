"""Reads what callgrind wrote: instructions by function, alone and with all that it called."""
import collections
import re

Function = collections.namedtuple("Function", "alone inclusive")


def read(path):
    """({function: Function}, {object: instructions}) of one dump."""
    names = {"fn": {}, "ob": {}}
    alone, called, by_object = (collections.Counter() for _ in range(3))

    def name(kind, text):
        match = re.match(r"\((\d+)\)(?: (.*))?$", text)
        if not match:
            return text
        if match[2] is not None:
            names[kind][match[1]] = match[2]
        return names[kind][match[1]]

    function = where = callee = None
    is_call = False
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            line = line.rstrip("\n")
            key, equals, value = line.partition("=")
            if equals and key in ("fn", "cfn"):
                found = name("fn", value)
                if key == "fn":
                    function = found
                else:
                    callee = found
            elif equals and key in ("ob", "cob"):
                found = name("ob", value)
                if key == "ob":
                    where = found
            elif equals and key == "calls":
                is_call = True
            elif re.match(r"[+*0-9-]", line):
                cost = int(line.split()[1]) if " " in line else 0
                if is_call:
                    # A function that calls itself is counted where it was entered.
                    if callee != function:
                        called[function] += cost
                    is_call = False
                else:
                    alone[function] += cost
                    by_object[where] += cost
    functions = {f: Function(alone[f], alone[f] + called[f]) for f in set(alone) | set(called)}
    return functions, dict(by_object)
