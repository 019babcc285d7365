"""Reads *.mutants, and plants the faults that they describe into a copy of the tree.

A block of lines is one fault:

  name_of_the_fault
  in channel/rdma/message_link.cc
  by //tests/sim:message_link_test       the test that must find it; of several, any one
  by sim                                 //tests/sim:channel_sim, with SEEDS seeds; storms: with --cancels; gathers: with --gathers; kinds: with --links shm,nics
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

SEEDS = {"sim": ["--seeds", "400"], "storms": ["--cancels", "--seeds", "60"], "gathers": ["--gathers", "--seeds", "100"],
         "kinds": ["--links", "shm,nics", "--seeds", "400"]}
SIM = "//tests/sim:channel_sim"
MOST = 1 << 16  # Numbers of faults are below.
STATEMENTS = re.compile(r"[;}]\s*(//[^\n]*)?$")

# Every program and library has its own copy of `tryst_mutants`, but the bytes of TRYST_MUTANT_PASSED are one file for them all, and
# for the processes that they start: whoever passes a fault that is awake sets the byte of its number, also just before a crash.
# TRYST_MUTANT=all wakes none, and every fault sets its byte. All of it is inline: a function in a header has the same words wherever it is
# included, so a fault in it is one fault, with one number, in every source and every instance of a template.
PRELUDE = """#ifndef TRYST_MUTANT_PLANTED
#define TRYST_MUTANT_PLANTED
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
struct TrystMutants {
  int awake = 0;
  bool all = false;
  unsigned char* passed = none;
  unsigned char none[MOST] = {};
  TrystMutants() {
    const char* number = getenv("TRYST_MUTANT");
    if (number == nullptr) return;
    all = strcmp(number, "all") == 0;
    awake = all ? 0 : atoi(number);
    const char* path = getenv("TRYST_MUTANT_PASSED");
    const int file = path == nullptr ? -1 : open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0) return;
    if (ftruncate(file, MOST) == 0) {
      void* bytes = mmap(nullptr, MOST, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      if (bytes != MAP_FAILED) passed = static_cast<unsigned char*>(bytes);
    }
    close(file);
  }
};
inline TrystMutants tryst_mutants;
inline bool TrystMutant(int number) {
  if (__builtin_expect(number != tryst_mutants.awake, 1)) {
    if (tryst_mutants.all) tryst_mutants.passed[number] = 1;
    return false;
  }
  // Null in a static object that is made before ours.
  if (tryst_mutants.passed != nullptr) tryst_mutants.passed[number] = 1;
  return true;
}
#endif
""".replace("MOST", str(MOST))

# A header is compiled with sources that have no fault, and whose warnings may be errors: none is given for what it has.
IN_HEADERS = "#pragma GCC system_header\n"

Mutant = collections.namedtuple("Mutant", "number name path tests survives old new")

# `before` and `after` are put around the text between two places; without an `after`, `before` replaces it.
Edit = collections.namedtuple("Edit", "begin end before after")


class Wrong(Exception):
    """A file of faults that cannot be read."""


def _test(words):
    if words[0] in SEEDS:
        return [SIM] + SEEDS[words[0]]
    return words


def _is_whole(text):
    """Whether it can be a branch: whole statements, or an expression."""
    return all(text.count(a) == text.count(b) for a, b in ("()", "{}")) and (STATEMENTS.search(text) or ";" not in text)


def _block(lines, where, number):
    fields = {"in": [], "by": [], "survives": [], "-": [], "+": []}
    for line in lines[1:]:
        word, _, rest = line.partition(" ")
        if word not in fields:
            raise Wrong("%s: %s begins with none of %s" % (where, line, ", ".join(fields)))
        fields[word].append(rest)
    if len(fields["in"]) != 1 or not fields["by"] or not fields["-"] or not fields["+"]:
        raise Wrong("%s: %s lacks in, by, - or +" % (where, lines[0]))
    old, new = "\n".join(fields["-"]), "\n".join(fields["+"])
    if "MUTANT" not in new and not _is_whole(old):
        raise Wrong("%s: %s is neither a condition nor whole statements: the new text has to say MUTANT" % (where, lines[0]))
    if not new.strip() and not STATEMENTS.search(old):
        raise Wrong("%s: %s leaves a condition out, and says nothing in its place" % (where, lines[0]))
    return Mutant(number, lines[0], fields["in"][0], [_test(by.split()) for by in fields["by"]],
                  " ".join(fields["survives"]), old, new)


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


def _edit(mutant, begin, end):
    awake = "TrystMutant(%d)" % mutant.number
    if "MUTANT" in mutant.new:
        return Edit(begin, end, re.sub(r"\bMUTANT\b", awake, mutant.new), None)
    if STATEMENTS.search(mutant.old):
        return Edit(begin, end, "{ if (%s) {\n%s\n} else {\n" % (awake, mutant.new), "\n} }")
    return Edit(begin, end, "(%s ? (%s) : (" % (awake, mutant.new), "))")


def _is_inside_a_statement(text, edit):
    """Whether an `if` would be put where an expression goes on."""
    if edit.after is None or not edit.before.startswith("{"):
        return False
    before = re.sub(r"//[^\n]*", "", text[:edit.begin]).rstrip()
    return bool(before) and before[-1] not in ";{}:)" and not re.search(r"\b(else|do)$", before)


def crosses(one, other):
    """Whether neither is inside the other, nor beside it."""
    return one.begin < other.begin < one.end < other.end or other.begin < one.begin < other.end < one.end


def apply_edits(text, edits):
    """Of edits with the same place, those behind are around those before."""
    for edit in edits:
        assert edit.after is not None or not any(
            edit.begin <= other.begin and other.end <= edit.end for other in edits if other is not edit), edit
    puts = []  # (place, order there, what, what of the text is left out)
    for turn, edit in enumerate(edits):
        if edit.begin == edit.end:
            puts.append((edit.begin, (1, -turn, 0), edit.before + (edit.after or ""), 0))
        elif edit.after is None:
            puts.append((edit.begin, (2, -edit.end, -turn), edit.before, edit.end - edit.begin))
        else:
            puts.append((edit.begin, (2, -edit.end, -turn), edit.before, 0))
            puts.append((edit.end, (0, -edit.begin, turn), edit.after, 0))
    parts, at = [], 0
    for place, _, put, left_out in sorted(puts):
        parts += [text[at:place], put]
        at = max(at, place + left_out)
    return "".join(parts) + text[at:]


def plant(text, mutants, generated=(), in_header=False):
    """The text with these faults, and {name: why not} of those that do not apply.

    Generated ones bring their edits; where such a fault is in the way of a described one it is left out.
    """
    refused = {}
    edits = []
    for mutant in mutants:
        found = [match.span() for match in _pattern(mutant.old).finditer(text)]
        edit = _edit(mutant, *found[0]) if len(found) == 1 else None
        if edit is None:
            refused[mutant.name] = "its text is there %d times" % len(found)
        elif _is_inside_a_statement(text, edit):
            refused[mutant.name] = "its text ends a statement and begins inside it"
        elif any(edit.begin < other.end and other.begin < edit.end and (edit[:2] != other[:2] or None in (edit.after, other.after))
                 for other in edits):
            refused[mutant.name] = "it overlaps another fault"
        else:
            edits.append(edit)
    described = list(edits)
    for fault in generated:
        if any(crosses(edit, other) or (other.after is None and other.begin <= edit.begin and edit.end <= other.end)
               for edit in fault.edits for other in described):
            refused[fault.name] = "it overlaps a fault that is described"
        else:
            edits += fault.edits
    return (IN_HEADERS if in_header else "") + PRELUDE + apply_edits(text, edits), refused
