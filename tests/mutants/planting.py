"""Reads *.mutants, and plants the faults that they describe into a copy of the tree.

A block of lines is one fault:

  name_of_the_fault
  in channel/rdma/message_link.cc
  by //tests/sim:message_link_test       the test that must find it; of several, any one
  by sim                                 //tests/sim:channel_sim, with SEEDS seeds; storms: with --cancels
  survives the reason                    nobody finds it, since it changes nothing that is promised
  - the text as it is                    a condition, or whole statements
  + the text with the fault              nothing: the statements are left out

All are planted at once and lie dormant: each becomes a branch that TRYST_MUTANT=number in the environment of the test takes. So
one build serves them all. A condition becomes (fault ? new : old), statements an if with both; where neither can be had, the new
text says MUTANT itself, which is true where the fault is awake. Spaces and line breaks do not count when the text is looked for.
It has to be there once: moved code keeps its faults, changed code loses them, and the command says so.
"""
import collections
import glob
import os
import re

SEEDS = {"sim": ["--seeds", "400"], "storms": ["--cancels", "--seeds", "60"]}
SIM = "//tests/sim:channel_sim"

PRELUDE = """#ifndef TRYST_MUTANT_PLANTED
#define TRYST_MUTANT_PLANTED
#include <cstdio>
#include <cstdlib>
__attribute__((unused)) static bool TrystMutant(int number) {
  static const int planted = getenv("TRYST_MUTANT") == nullptr ? 0 : atoi(getenv("TRYST_MUTANT"));
  if (number != planted) return false;
  static const bool told = [] {
    const char* path = getenv("TRYST_MUTANT_REACHED");
    FILE* file = path == nullptr ? nullptr : fopen(path, "w");
    return file != nullptr && fclose(file) == 0;
  }();
  return told || true;
}
#endif
"""

Mutant = collections.namedtuple("Mutant", "number name path tests survives old new")


class Wrong(Exception):
    """A file of faults that cannot be read."""


def _test(words):
    if words[0] in SEEDS:
        return [SIM] + SEEDS[words[0]]
    return words


def _block(lines, where, number):
    fields = {"in": [], "by": [], "survives": [], "-": [], "+": []}
    for line in lines[1:]:
        word, _, rest = line.partition(" ")
        if word not in fields:
            raise Wrong("%s: %s begins with none of %s" % (where, line, ", ".join(fields)))
        fields[word].append(rest)
    if len(fields["in"]) != 1 or not fields["by"] or not fields["-"] or not fields["+"]:
        raise Wrong("%s: %s lacks in, by, - or +" % (where, lines[0]))
    return Mutant(number, lines[0], fields["in"][0], [_test(by.split()) for by in fields["by"]],
                  " ".join(fields["survives"]), "\n".join(fields["-"]), "\n".join(fields["+"]))


def read(folder):
    """All faults, by file and place; numbers are from 1."""
    mutants = []
    for path in sorted(glob.glob(os.path.join(folder, "*.mutants"))):
        with open(path, encoding="utf-8") as file:
            for block in re.split(r"\n\s*\n", file.read()):
                lines = [line for line in block.splitlines() if line and not line.startswith("#")]
                if lines:
                    mutants.append(_block(lines, os.path.basename(path), len(mutants) + 1))
    names = [mutant.name for mutant in mutants]
    double = {name for name in names if names.count(name) > 1}
    if double:
        raise Wrong("two faults are called %s" % ", ".join(sorted(double)))
    return mutants


def _pattern(text):
    tokens = re.findall(r"\w+|[^\w\s]", text)
    pattern = ""
    for before, token in zip([""] + tokens, tokens):
        between = r"\s+" if re.match(r"\w", before[-1:]) and re.match(r"\w", token) else r"\s*"
        pattern += (between if before else "") + re.escape(token)
    return re.compile(pattern)


def _planted(mutant, old):
    awake = "TrystMutant(%d)" % mutant.number
    if "MUTANT" in mutant.new:
        return re.sub(r"\bMUTANT\b", awake, mutant.new)
    if re.search(r"[;}]\s*(//[^\n]*)?$", mutant.old):
        return "{ if (%s) {\n%s\n} else {\n%s\n} }" % (awake, mutant.new, old)
    return "(%s ? (%s) : (%s))" % (awake, mutant.new, old)


def plant(text, mutants):
    """The text with these faults, and {name: why not} of those that do not apply."""
    refused = {}
    places = {}
    for mutant in mutants:
        found = [match.span() for match in _pattern(mutant.old).finditer(text)]
        if len(found) != 1:
            refused[mutant.name] = "its text is there %d times" % len(found)
        elif any(begin < found[0][1] and found[0][0] < end for begin, end in set(places) - set(found)):
            refused[mutant.name] = "it overlaps another fault"
        else:
            places.setdefault(found[0], []).append(mutant)
    for (begin, end), here in sorted(places.items(), reverse=True):
        planted = text[begin:end]
        for mutant in here:  # Of several in one place each is around the one before.
            planted = _planted(mutant, planted)
        text = text[:begin] + planted + text[end:]
    return PRELUDE + text, refused
