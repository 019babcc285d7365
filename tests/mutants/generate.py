"""Plants faults by rule at every place of the rooms of the protocol, which nobody has chosen by what the tests look at.

A fault is known by its file, its function, its rule and its text, and by which of several alike it is: so it stays the same when
lines move. equivalents.txt lists those that change nothing that is promised, each with its reason, and survivors.txt those that no test
finds yet.

Rules:
  turned      a comparison says the opposite; a literal true or false too
  bound       < becomes <=, and so on; 0 and 1 in a comparison or beside a + or - become 1 and 2
  always      the branch is taken whatever the condition says        never     and so are no branch, no turn of a loop
  part        one operand of && or || does not count
  scaled      a constant is twice itself, a time or a power of ten a thousandth
  left out    a statement: a call, an assignment, a break; a call that is returned
  exchanged   two statements, of which one is a call
  early       the function returns at once                           nothing   it returns {} here: no error, null, false, 0
Sources and headers have them, but for headers of tests, and for constexpr functions, in which nothing can be woken.
What only words a message is left alone: logs, checks, arguments of StrCat and of the makers of statuses, functions named for text.
"""
import collections
import hashlib
import re

from cpp_source import Source, Unreadable
from planting import Edit

ROOMS = ("base", "rendezvous", "weights", "channel", "channel/arena", "channel/compat", "channel/device", "channel/grpc", "channel/ops", "channel/poller",
         "channel/pool", "channel/rdma", "channel/shm", "channel/signing", "verbs", "verbs/soft", "server", "server/config", "server/data_plane",
         "server/etcd", "server/listener", "server/members", "server/process", "server/regions", "server/security", "server/services", "server/status",
         "server/weights")

# The text of `edits` has the word MUTANT where the code has to ask whether this fault, by its number, is awake.
Fault = collections.namedtuple("Fault", "name path line function rule text edits")

TURNED = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}
MOVED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
ASSIGN = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", "return", ","}
AROUND_TERNARY = ASSIGN | {"?", ":"}
AROUND_OR = AROUND_TERNARY | {"||"}
AROUND_AND = AROUND_OR | {"&&"}
AROUND_COMPARISON = AROUND_AND | set(TURNED)
PLAIN = {"static_cast", "move", "size", "StoreLittle", "LoadLittle", "StoreBig", "LoadBig", "min", "max", "uint16_t", "uint32_t", "uint64_t",
         "begin", "end", "empty", "front", "back", "remove", "get", "load", "bytes", "string", "message", "address", "sizeof", "CMSG_SPACE",
         "MakeConstSpan", "EncodeAckImmediate"}
# Calls of containers and lines, which change what they are called on and nothing else.
CHANGING = {"push_back", "pop_back", "push_front", "pop_front", "emplace", "emplace_back", "clear", "resize", "assign", "Push", "PushFront"}
MADE = re.compile(r"\b(Tensor|TensorKey|SendArgs|RecvArgs|Received|absl :: Status|absl :: OkStatus) \( \)")  # Values without a call.
WORDING = re.compile(r"(StrCat|StrAppend|StrFormat|StrJoin|Substitute|\w+Error)$")
TEXT_FUNCTIONS = re.compile(r"(Text|Name|Names|ToString|DebugString|Describe\w*|Explain\w*|Why\w*|Table|Html|Json|Words|Status\w*Page)$")


class _Planter:
    def __init__(self, path, source):
        self.path = path
        self.source = source
        self.faults = []
        self.alike = collections.Counter()

    def add(self, rule, function, at, text, *edits):
        key = (self.path, function, rule, text)
        self.alike[key] += 1
        name = "g" + hashlib.sha256("\0".join(key + (str(self.alike[key]),)).encode()).hexdigest()[:9]
        line = self.source.text.count("\n", 0, self.source.tokens[at].begin) + 1
        self.faults.append(Fault(name, self.path, line, function, rule, text, list(edits)))

    def around(self, begin, end, before, after):
        tokens = self.source.tokens
        return Edit(tokens[begin].begin, tokens[end - 1].end, before, after)

    def before(self, at, text):
        place = self.source.tokens[at].begin
        return Edit(place, place, text, "")

    # ---- Functions and statements ----

    def function(self, name, head, body, inner):
        if not body or TEXT_FUNCTIONS.search(name):
            return
        last = head.split()[-1:]
        if (inner and self.gives_back(body)) or last == ["&"] or re.search(r"\bStatusOr < .*>$", head):
            self.returns = None  # One cannot see of which type; there is nothing to refer to; {} is no StatusOr.
        elif re.search(r"\boperator\w", name):
            self.returns = "return {};"  # What it converts to stands in its name.
        else:
            self.returns = "return;" if inner or last in ([], ["explicit"], ["void"], ["inline"], ["virtual"]) else "return {};"
        returns = self.returns
        if returns and not (len(body) == 1 and body[0].kind == "return"):
            self.add("early", name, body[0].begin, "%s %s()" % (head, name), self.before(body[0].begin, "if (MUTANT) %s " % returns))
        self.list(name, body)

    def gives_back(self, statements):
        return any(one.kind == "return" and one.end - one.begin > 2 or any(self.gives_back(part) for part in one.parts)
                   for one in statements)

    def list(self, name, statements):
        words = self.source.words
        for first, second in zip(statements, statements[1:]):
            if first.kind == second.kind == "expression" and self.is_ours(first) and self.is_ours(second):
                texts = [words(one.begin, one.end) for one in (first, second)]
                if "{" not in texts[1] and not self.indifferent(texts):
                    self.add("exchanged", name, first.begin, " ".join(texts),
                             self.before(first.begin, "if (MUTANT) { %s } " % texts[1]),
                             self.around(second.begin, second.end, "{ if (!MUTANT) ", " }"))
        for one in statements:
            self.statement(name, one)

    def indifferent(self, texts):
        """Whether both only store something, neither what the other looks at: which is first changes nothing."""
        targets = []
        for text in texts:
            calls = set(re.findall(r"(\w+)(?: < [\w: ]+ >)? \(", MADE.sub("0", text)))
            stored = (re.match(r"([\w .>\[\]-]+?) [-+*/|&]?= ", text) or re.match(r"(?:\+\+|--) ([\w .>\[\]-]+?) ;", text) or
                      re.match(r"([\w .>\[\]-]+?) (?:\.|->) (?:%s) \(" % "|".join(CHANGING), text))
            if calls - PLAIN - (CHANGING if stored else set()) or (stored is None and not text.startswith("Store")):
                return False
            targets.append(stored.group(1) if stored else "Store")  # Stores go into other bytes of one message.
        for target, other in zip(targets, reversed(texts)):
            whole = re.match(r"(\w+) \. ", target)
            if target in other or (whole and re.search(r"\b%s\b(?! \.)" % whole.group(1), other)):
                return set(targets) == {"Store"}
        return True

    def is_ours(self, statement):
        text = self.source.words(statement.begin, statement.begin + 6)
        return not text.startswith(("( void )", "absl :: StrAppend", "StrAppend"))

    def statement(self, name, one):
        source = self.source
        words = source.words(one.begin, one.end)
        if one.kind == "expression" and self.is_ours(one):
            self.add("left out", name, one.begin, words, self.around(one.begin, one.end, "{ if (!MUTANT) ", " }"))
        elif one.kind == "jump":
            self.add("left out", name, one.begin, words, self.around(one.begin, one.end, "{ if (!MUTANT) ", " }"))
        elif one.kind == "return" and self.returns and ("(" in words or one.end - one.begin > 3):
            if words not in ("return absl :: OkStatus ( ) ;", "return { } ;"):
                returns = self.returns
                self.add("left out" if returns == "return;" else "nothing", name, one.begin, words,
                         self.around(one.begin, one.end, "{ if (MUTANT) %s " % returns, " }"))
        if one.condition is not None:
            self.condition(name, one)
        if one.kind in ("expression", "return", "declaration") and source.word(one.begin) not in (
                "using", "static_assert", "constexpr", "struct", "class", "enum", "static"):
            self.expression(name, one.begin, one.end - 1, one.kind)
        for part in one.parts:
            self.list(name, part)

    def only_tells(self, statements):
        return all(one.kind == "macro" or (one.kind == "block" and self.only_tells(one.parts[0])) for one in statements)

    def condition(self, name, one):
        source = self.source
        if one.kind == "if" and all(self.only_tells(part) for part in one.parts):
            return
        begin, end = one.condition
        flat = [source.word(i) for i in source._flat(begin, end)]
        if source.word(one.begin + 1) != "constexpr" and "=" not in flat and one.kind != "switch":
            text = "%s ( %s )" % (one.kind, source.words(begin, end))
            if one.kind == "if":
                self.add("always", name, begin, text, self.around(begin, end, "((", ") || MUTANT)"))
            self.add("never", name, begin, text, self.around(begin, end, "((", ") && !MUTANT)"))
        self.expression(name, begin, end, "condition")

    # ---- Expressions ----

    def expression(self, name, begin, end, kind):
        source = self.source
        at = begin
        inside = dict(source.lambdas(begin, end))
        while at < end:
            word, token = source.word(at), source.tokens[at]
            if at in inside:
                outer = self.returns
                body = source.statements(at, inside[at])
                self.function(name + "::lambda", "", body, True)
                self.returns = outer
                at = inside[at] + 1
                continue
            if token.kind == "word" and source.word(at + 1) == "(" and WORDING.search(word):
                at = source.pair[at + 1]
            elif word == "<" and at in source.pair:
                at = source.pair[at]
            elif word == "[" and kind == "declaration" and source.tokens[at - 1].kind == "word" and at - begin < 6:
                at = source.pair[at]
            elif word in TURNED and source.is_spaced(at):
                self.comparison(name, at)
            elif word in ("&&", "||") and source.is_spaced(at):
                self.joined(name, at)
            elif word == "?":
                left = source.operand(at, AROUND_TERNARY, -1)
                text = source.words(left[0], at + 1)
                self.add("always", name, at, text, self.around(*left, "((", ") || MUTANT)"))
                self.add("never", name, at, text, self.around(*left, "((", ") && !MUTANT)"))
            elif token.kind == "number" or re.match(r"k[A-Z]\w*$", word):
                self.constant(name, at, begin, end)
            elif word in ("true", "false"):
                self.add("turned", name, at, self.nearby(at, begin, end), self.around(at, at + 1, "(MUTANT != ", ")"))
            at += 1

    def nearby(self, at, begin, end):
        return self.source.words(max(begin, at - 6), at) + " [" + self.source.word(at) + "] " + self.source.words(at + 1, min(end, at + 7))

    def comparison(self, name, at):
        source = self.source
        word = source.word(at)
        left, right = source.operand(at, AROUND_COMPARISON, -1), source.operand(at, AROUND_COMPARISON, 1)
        sides = source.words(*left), source.words(*right)
        if "{" in sides[0] + sides[1] or not sides[0] or not sides[1] or source.word(left[0]) == "case":
            return
        text = "%s %s %s" % (sides[0], word, sides[1])
        for rule, other in (("turned", TURNED.get(word)), ("bound", MOVED.get(word))):
            if other:
                self.add(rule, name, at, text,
                         self.around(left[0], right[1], "(MUTANT ? (%s %s %s) : " % (sides[0], other, sides[1]), ")"))

    def joined(self, name, at):
        source = self.source
        word = source.word(at)
        stops = AROUND_AND if word == "&&" else AROUND_OR
        edits = ("((", ") || MUTANT)") if word == "&&" else ("((", ") && !MUTANT)")
        left, right = source.operand(at, stops, -1), source.operand(at, stops, 1)
        sides = [right]
        if source.word(left[0] - 1) != word:  # Else it was the right side of the one before.
            sides.insert(0, left)
        for begin, end in sides:
            if begin < end:
                text = "%s in %s" % (source.words(begin, end), source.words(left[0], right[1]))
                self.add("part", name, begin, text, self.around(begin, end, *edits))

    def constant(self, name, at, begin, end):
        source = self.source
        word = source.word(at)
        around = {source.word(at - 1), source.word(at + 1)}
        if source.word(at - 1) in ("::", ".", "->") or source.word(at + 1) in ("(", "::", "<", "{", ".", "->", "["):
            return
        compared = any(mark in TURNED and source.is_spaced(i) for i, mark in ((at - 1, source.word(at - 1)), (at + 1, source.word(at + 1))))
        added = any(mark in ("+", "-") and source.is_spaced(i) for i, mark in ((at - 1, source.word(at - 1)), (at + 1, source.word(at + 1))))
        digits = word.replace("'", "").lower()
        text = self.nearby(at, begin, end)
        if re.match(r"[01]u?l*$", digits):
            if compared or added:
                self.add("bound", name, at, text, self.around(at, at + 1, "(MUTANT ? %s + 1 : " % word, ")"))
        elif re.match(r"1000(000)*u?l*$", digits) or re.search(r"(Ns|Us|Ms|Seconds)$", word):
            self.add("scaled", name, at, text, self.around(at, at + 1, "(MUTANT ? %s / 1000 : " % word, ")"))
        elif "<<" not in around or word != "1":
            self.add("scaled", name, at, text, self.around(at, at + 1, "(MUTANT ? %s * 2 : " % word, ")"))


def faults_of(path, text):
    """All faults of a file, but for those whose places overlap with those of earlier ones by half."""
    planter = _Planter(path, Source(text))
    for function in planter.source.functions:
        planter.function(function.name, function.head, function.body, function.inner)
    return planter.faults


def numbered(fault, number):
    awake = "TrystMutant(%d)" % number
    return fault._replace(edits=[edit._replace(before=edit.before.replace("MUTANT", awake), after=edit.after.replace("MUTANT", awake))
                                 for edit in fault.edits])


def drawn(faults, seed):
    """In the order of a seed, in which those of a smaller sample come first."""
    return sorted(faults, key=lambda fault: hashlib.sha256(("%s %s" % (seed, fault.name)).encode()).digest())


def blocks_of(text):
    """{name: the block}. Each block of equivalents.txt and survivors.txt has the fault's name, and lines `in`, `function`, `rule`, `text`, `why`."""
    found = {}
    for block in re.split(r"\n\s*\n", text):
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        if lines:
            fields = dict(line.partition(" ")[::2] for line in lines[1:])
            missing = {"in", "function", "rule", "text", "why"} - set(fields)
            if missing:
                raise Unreadable("%s lacks %s" % (lines[0], ", ".join(sorted(missing))))
            found[lines[0]] = fields
    return found
