"""As much of C++ as it takes to plant faults: tokens, pairs of brackets, functions, statements.

It leans on clang-format, which CI insists on: an operator between two operands has a space on either side, and the < of a template
has none. Nothing is known of types; what does not compile after all is left out by whoever builds (mutants.py).
"""
import collections
import re

Token = collections.namedtuple("Token", "kind text begin end")  # kind: word, number, string, mark
# `head` is the text before the body, `body` a list of statements, `inner` that it is a lambda.
Function = collections.namedtuple("Function", "name head body inner")
# Tokens from `begin` up to `end`. `parts` has the lists of statements inside of it, `condition` a pair of tokens, or None.
Statement = collections.namedtuple("Statement", "kind begin end condition parts")

MARKS = ["<<=", "...", "->*", "<=>", "::", "->", "++", "--", "<=", ">=", "==", "!=", "&&", "||", "+=", "-=", "*=", "/=", "%=", "&=",
         "|=", "^=", "<<"]
LEXER = re.compile(
    r"""(?P<space>\s+|//(?:\\\n|[^\n])*|/\*.*?\*/)
      | (?P<string>(?:u8|[uUL])?R"(?P<stop>[^()\\\s]*)\(.*?\)(?P=stop)"|(?:u8|[uUL])?"(?:\\.|[^"\\\n])*"|[uUL]?'(?:\\.|[^'\\\n])+')
      | (?P<number>\.?\d(?:[eEpP][+-]|'?[\w.])*)
      | (?P<word>[A-Za-z_]\w*)
      | (?P<mark>%s|[^\s\w])""" % "|".join(map(re.escape, MARKS)), re.VERBOSE | re.DOTALL)
DIRECTIVE = re.compile(r"[ \t]*#(?:\\\n|[^\n])*")
OPEN, CLOSE = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}
TYPES = {"auto", "bool", "char", "class", "const", "constexpr", "double", "enum", "extern", "float", "int", "long", "short", "signed",
         "static", "static_assert", "struct", "thread_local", "typedef", "union", "unsigned", "using", "void", "volatile"}


class Unreadable(Exception):
    """Brackets that do not match, as where #if divides them."""


def tokens_of(text):
    tokens, at = [], 0
    fresh = True  # At the begin of a line.
    while at < len(text):
        if fresh:
            directive = DIRECTIVE.match(text, at)
            if directive:
                at = directive.end()
                continue
        match = LEXER.match(text, at)
        if match is None:
            raise Unreadable("at %r" % text[at:at + 20])
        if match.lastgroup == "space" or match.group("space"):
            fresh = "\n" in match.group() or (fresh and not match.group().strip())
        else:
            fresh = False
            kind = next(kind for kind in ("string", "number", "word", "mark") if match.group(kind) is not None)
            tokens.append(Token(kind, match.group(), match.start(), match.end()))
        at = match.end()
    return tokens


class Source:
    def __init__(self, text):
        self.text = text
        self.tokens = tokens_of(text)
        self.pair = {}  # Maps the place of each bracket, the < and > of templates too, to that of the other.
        self._pair_brackets()
        self.functions = []
        self.constant_functions = 0  # A compiler may ask them before there is a program, so nothing is awake in them.
        self._declarations(0, len(self.tokens), "")

    def word(self, at):
        return self.tokens[at].text if 0 <= at < len(self.tokens) else ""

    def words(self, begin, end):
        return " ".join(token.text for token in self.tokens[begin:end])

    def as_written(self, begin, end):
        return self.text[self.tokens[begin].begin:self.tokens[end - 1].end] if begin < end else ""

    def is_spaced(self, at):
        token = self.tokens[at]
        return self.text[token.begin - 1:token.begin].isspace() and self.text[token.end:token.end + 1].isspace()

    def _pair_brackets(self):
        stack, angles = [], []
        for at, token in enumerate(self.tokens):
            if token.kind != "mark":
                continue
            if token.text in OPEN:
                stack.append((at, angles))
                angles = []
            elif token.text in CLOSE:
                if not stack or OPEN[self.word(stack[-1][0])] != token.text:
                    raise Unreadable("the %s at %d closes nothing" % (token.text, token.begin))
                opened, angles = stack.pop()
                self.pair[opened], self.pair[at] = at, opened
            elif token.text == "<" and at and self.tokens[at - 1].end == token.begin and self.tokens[at - 1].kind == "word":
                angles.append(at)
            elif token.text == ">" and angles and not self.text[token.begin - 1].isspace():
                opened = angles.pop()
                self.pair[opened], self.pair[at] = at, opened
            elif token.text == ";":
                angles = []
        if stack:
            raise Unreadable("the %s at %d is not closed" % (self.word(stack[-1][0]), self.tokens[stack[-1][0]].begin))

    # ---- Declarations ----

    def _declarations(self, at, end, room):
        begin = at
        while at < end:
            word = self.word(at)
            if word == ";" or (word == ":" and self.word(at - 1) in ("public", "private", "protected")):
                begin = at = at + 1
            elif word == "{":
                at = self._braces(begin, at, room)
                if self.word(at - 1) == "}" and self.word(at) != ";" and self._ends_at_brace:
                    begin = at
            elif at in self.pair and self.pair[at] > at:
                at = self.pair[at] + 1
            else:
                at += 1

    _ends_at_brace = False

    def _braces(self, begin, at, room):
        """What the { at `at` opens, in a declaration that begins at `begin`; returns what comes behind it."""
        behind = self.pair[at] + 1
        while self.word(begin) == "template" and begin + 1 in self.pair:
            begin = self.pair[begin + 1] + 1
        head = self._flat(begin, at)
        self._ends_at_brace = True
        texts = [self.word(i) for i in head]
        is_type = texts[:1] in (["class"], ["struct"], ["union"]) and "=" not in texts and ("(" not in texts or texts[1] == "alignas")
        if "namespace" in texts or (texts[:1] == ["extern"] and "(" not in texts):
            self._declarations(at + 1, behind - 1, room)
        elif is_type or "enum" in texts or "=" in texts or "operator" not in texts and "(" not in texts:
            self._ends_at_brace = False
            if is_type:
                names = [text for text in texts[1:] if re.match(r"(?!ABSL_)[A-Za-z_]\w*$", text) and text not in ("final", "alignas")]
                self._declarations(at + 1, behind - 1, "%s%s::" % (room, names[0]) if names else room)
        elif ":" in texts and self.tokens[at - 1].kind == "word" or self.word(at - 1) == ">":
            self._ends_at_brace = False  # A member in the list of a constructor.
        else:
            first = next(i for i in head if self.word(i) == "(")
            name = first
            while self.tokens[name - 1].kind == "word" or self.word(name - 1) in ("::", "~") or self.word(name - 2) == "operator":
                if self.tokens[name - 1].kind == "word" and self.tokens[name].kind == "word" and self.word(name - 1) != "operator":
                    break
                name -= 1
            before = self.words(begin, name)
            if "constexpr" in before.split():
                self.constant_functions += 1
            elif "asm" not in before.split():
                self.functions.append(Function(room + self.words(name, first).replace(" ", ""), before,
                                               self.statements(at + 1, behind - 1), False))
        return behind

    def _flat(self, begin, end):
        """The tokens that are in no brackets."""
        at, flat = begin, []
        while at < end:
            flat.append(at)
            at = self.pair[at] if at in self.pair and at < self.pair[at] < end else at
            at += 1
        return flat

    # ---- Statements ----

    def statements(self, at, end):
        found = []
        while at < end:
            statement = self._statement(at, end)
            if statement.end > end:
                raise Unreadable("a statement at %d does not end" % self.tokens[at].begin)
            found.append(statement)
            at = statement.end
        return found

    def _statement(self, at, end):
        begin, word = at, self.word(at)
        if word == "{":
            behind = self.pair[at] + 1
            return Statement("block", begin, behind, None, [self.statements(at + 1, behind - 1)])
        if word in ("case", "default"):
            while self.word(at) != ":":
                at = self.pair[at] + 1 if self.word(at) in OPEN else at + 1
            return Statement("label", begin, at + 1, None, [])
        if word in ("if", "while", "switch", "for"):
            at += 2 if self.word(at + 1) == "constexpr" else 1
            opened, closed = at, self.pair[at]
            inner = self._statement(closed + 1, end)
            parts, behind = [[inner]], inner.end
            if word == "if" and self.word(behind) == "else":
                other = self._statement(behind + 1, end)
                parts, behind = parts + [[other]], other.end
            condition = (opened + 1, closed)
            marks = [i for i in self._flat(opened + 1, closed) if self.word(i) == ";"]
            if word == "for":
                condition = (marks[0] + 1, marks[1]) if len(marks) == 2 and marks[0] + 1 < marks[1] else None
            elif marks:
                condition = (marks[0] + 1, closed)
            return Statement(word, begin, behind, condition, parts)
        if word in ("try", "catch"):
            at = self.pair[at + 1] + 1 if word == "catch" else at + 1
            behind = self.pair[at] + 1
            return Statement("block", begin, behind, None, [self.statements(at + 1, behind - 1)])
        if word == "do":
            inner = self._statement(at + 1, end)
            return Statement("do", begin, self.pair[inner.end + 1] + 2, (inner.end + 2, self.pair[inner.end + 1]), [[inner]])
        while at < end and self.word(at) != ";":
            at = self.pair[at] + 1 if self.word(at) in OPEN else at + 1
        kind = "return" if word == "return" else "jump" if word in ("break", "continue", "goto") else self._what(begin, at)
        return Statement(kind, begin, at + 1, None, [])

    def _what(self, begin, end):
        """expression, declaration, or macro: one of those that only check or tell something."""
        first = self.word(begin)
        if begin == end or first in TYPES:
            return "declaration"
        if re.match(r"(TRYST_(CHECK|DCHECK|LOG|REACHED|TSAN)|ABSL_)", first) or first in ("printf", "fprintf"):
            return "macro"
        if first in ("delete", "this", "++", "--", "*", "(", "(*") or self.tokens[begin].kind != "word":
            return "expression"
        at = begin
        while self.tokens[at].kind == "word" or self.word(at) == "::":
            if at > begin and self.tokens[at].kind == "word" and self.word(at - 1) != "::":
                return "declaration"
            at += 1
            if at in self.pair and self.word(at) == "<":
                at = self.pair[at] + 1
        if self.word(at) in ("*", "&", "&&") and not self.is_spaced(at):
            return "declaration"
        return "expression" if at < end else "declaration"

    # ---- Expressions ----

    def operand(self, at, stops, step):
        """From the operator at `at`: how far its operand on that side goes, as a pair of tokens."""
        i = at + step
        while 0 <= i < len(self.tokens):
            word = self.word(i)
            if i in self.pair and (self.pair[i] - i) * step > 0:
                i = self.pair[i] + step
            elif i in self.pair or word == ";" or (word in stops and self._stops(i, word)):
                break
            else:
                i += step
        return (i + 1, at) if step < 0 else (at + 1, i)

    def _stops(self, at, word):
        return word not in ("<", ">", "&&") or self.is_spaced(at)

    def lambdas(self, begin, end):
        """(first token of the body, its end) of those that are not inside of each other."""
        at = begin
        while at < end:
            if self.word(at) == "[" and at and (self.word(at - 1) in ("(", ",", "=", "return", "{", "?", ":", "&&", "||", "<<", ";") or
                                                at == begin):
                body = self.pair[at] + 1
                while body < end and self.word(body) not in ("{", ";", ","):
                    body = self.pair[body] + 1 if self.word(body) in ("(", "[") else body + 1
                if self.word(body) == "{":
                    yield body + 1, self.pair[body]
                    at = self.pair[body]
            at += 1
