"""Which files of the tree a pull passes: those that define a function which callgrind has seen run."""
import collections
import os
import re

ROOMS = ("channel", "gpu", "rendezvous", "server", "verbs")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def sources(root):
    """{path: text without comments} of what ships, bodies before headers."""
    found = {}
    for room in ROOMS:
        for folder, _, names in os.walk(os.path.join(root, room)):
            for name in sorted(names):
                if name.endswith((".cc", ".h")) and not name.endswith("_test.cc"):
                    path = os.path.join(folder, name)
                    with open(path, encoding="utf-8") as file:
                        found[os.path.relpath(path, root)] = COMMENT.sub("", file.read())
    return dict(sorted(found.items(), key=lambda item: item[0].endswith(".h")))


def plain(function):
    """'tryst::FetchOps::Ask(tryst::FetchOp*) [clone .isra.0]' -> (('FetchOps',), 'Ask'); None of what is not ours."""
    text = re.sub(r"\(anonymous namespace\)::", "", function)
    before = None
    while before != text:  # Templates within templates.
        before, text = text, re.sub(r"<[^<>]*>", "", text)
    match = re.match(r"(?:.* )?tryst::((?:\w+::)*)(~?\w+=?)\(", text)
    if not match or match[1].startswith("rpc::"):  # What protoc has written is not in the tree.
        return None
    return tuple(s for s in match[1].split("::") if s[:1].isupper()), match[2]  # A namespace is no class.


def file_of(classes, name, texts):
    """The file that defines it: a source, or else the header of its class."""
    head = "::".join(classes[-1:] + (re.escape(name),))
    # A definition begins a line and has a body; a declaration or a call ends with a semicolon.
    defined = re.compile(r"^[A-Za-z][\w:<>*&,() \[\]]*?(?<!\w)%s\s*\([^;{}]*\)[^;{}]*\{|^%s\s*\(" % (head, head), re.MULTILINE)
    declared = [re.compile(r"\b(?:class|struct)\s+(?:\w+(?:\([^)]*\))?\s+)*%s\b[^;{(]*\{" % c) for c in classes]
    for path, text in texts.items():
        header = path.endswith(".h") and classes
        if all(d.search(text) for d in declared) if header else defined.search(text):
            return path
    return None


def files(functions, root):
    """{file: functions of it that ran}. What the compiler has put into its callers is not seen."""
    texts, found = sources(root), collections.defaultdict(set)
    for function in functions:
        known = plain(function)
        path = known and file_of(*known, texts)
        if path:
            found[path].add("::".join((*known[0], known[1])))
    return dict(sorted(found.items()))
