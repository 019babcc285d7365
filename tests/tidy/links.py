"""Documents hang together: links and anchors lead somewhere, the index reaches every document, no sentence stands twice."""
import os
import re

from tree import line_of, lines

INDEX = "docs/README.md"
LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"<!-- table: .*?<!-- end table -->", re.DOTALL)
# Records describe their time and may say again what holds today.
RECORDS = re.compile(r"docs/decisions/\d.*|CHANGELOG\.md")
WORDS_OF_A_SENTENCE = 10  # Shorter ones may be the same by chance.


def blank(pattern, text):
    """What matches becomes spaces; line numbers stay."""
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def anchors(text):
    """The names by which GitHub lets one link to the headings."""
    found = set()
    for heading in re.findall(r"^#+ +(.*?) *$", blank(FENCE, text), re.MULTILINE):
        found.add(anchor(heading, found))
    return found


def anchor(heading, taken):
    """The name of a heading in a document that has those in `taken` already."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    name = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
    again = 0
    while name + ("-%d" % again if again else "") in taken:
        again += 1
    return name + ("-%d" % again if again else "")


def relative_links(tree, path):
    """(line, file, anchor, as written) of each link of a document to this tree."""
    text = blank(FENCE, tree.read(path))
    for match in LINK.finditer(text):
        if "://" in match[1] or match[1].startswith("mailto:"):
            continue
        to = os.path.normpath(os.path.join(os.path.dirname(path), match[1])) if match[1] else path
        yield line_of(text, match.start()), to, (match[2] or "")[1:], match[1] + (match[2] or "")


def links(tree):
    """A link leads to a file and to a heading in it; every document is linked; one that is spoken of is there."""
    known = set(tree.files) | {os.path.dirname(f) for f in tree.files}
    linked = set()
    for path in tree.of(".md"):
        for line, to, anchor, written in relative_links(tree, path):
            if to != path:
                linked.add(to)
            if to not in known and not any(f.startswith(to + "/") for f in tree.files):
                yield "%s:%d: the link %s leads nowhere" % (path, line, written)
            elif anchor and to.endswith(".md") and anchor not in anchors(tree.read(to)):
                yield "%s:%d: the link %s: %s has no such heading" % (path, line, written, to)
    for path in tree.of(".md"):
        if path.startswith("docs/") and path not in linked:
            yield "%s: no other document links to it" % path
    for path, number, line in lines(tree, r"docs/[\w/.-]+\.md"):
        for mention in re.findall(r"(?<![\w/])docs/[\w/.-]+\.md", line):
            if mention not in known:
                yield "%s:%d: speaks of %s, which is not there" % (path, number, mention)


def index(tree):
    """docs/README.md links to every document under docs/, or to a README.md there that does."""
    if INDEX not in tree.files:
        yield "%s: the index of the documents is missing" % INDEX
        return
    reached = {INDEX} | {to for _, to, _, _ in relative_links(tree, INDEX)}
    for path in sorted(reached):
        if path.startswith("docs/") and path.endswith("/README.md") and path in tree.files:
            reached |= {to for _, to, _, _ in relative_links(tree, path)}
    for path in tree.of(".md"):
        if path.startswith("docs/") and path not in reached:
            yield "%s: %s does not lead to it" % (path, INDEX)


def said_twice(tree):
    """No sentence of ten words stands twice in the documents (records, code and printed tables aside)."""
    seen = {}
    for path in tree.of(".md"):
        if not path.startswith("docs/") and path not in ("README.md", "CONTRIBUTING.md") or RECORDS.fullmatch(path):
            continue
        text = blank(PRINTED, blank(FENCE, tree.read(path)))
        for block in re.finditer(r"(?:(?!\n *\n|\n *(?:[-*] |\d+\. |\|)).)+", text, re.DOTALL):
            for sentence in re.finditer(r"[^.:;?!|]+(?:[.:;?!](?!\s)[^.:;?!|]*)*", block[0]):
                said = " ".join(re.findall(r"\w+", re.sub(r"\]\([^)]*\)", "]", sentence[0]).lower()))
                if said.count(" ") + 1 < WORDS_OF_A_SENTENCE:
                    continue
                begin = sentence.end() - len(sentence[0].lstrip())
                where = "%s:%d" % (path, line_of(text, block.start() + begin))
                if said in seen:
                    yield "%s: %s says it already: %s" % (where, seen[said], " ".join(sentence[0].split())[:80])
                seen.setdefault(said, where)
