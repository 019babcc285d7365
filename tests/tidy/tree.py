"""The source tree as the tidy rules see it: files, BUILD targets, code without comments."""
import ast
import fnmatch
import functools
import os
import re

# Folders that are not ours: outputs, caches, and hidden ones (except .ci).
SKIPPED_FOLDERS = {"out", "bazel-out", "__pycache__"}

COMMENT_OR_LITERAL = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'""",
    re.DOTALL)


NOT_EDGES = ("name", "parts", "users", "visibility", "default_visibility", "packages", "tags")
# tools/build_defs/rules.bzl: their files go without saying where they are named for the target, and in these rooms testonly does.
HAVE_PARTS = {"cc_binary", "cc_fuzz_test", "cc_library", "cc_test"}
TEST_ROOMS = ("bench", "tests")


class Target:
    """One rule of a BUILD file, with every string that it mentions."""

    def __init__(self, package, kind, name, line, build, strings, for_tests):
        self.for_tests = for_tests
        self.package = package
        self.kind = kind
        self.name = name
        self.line = line
        self.build = build
        self.labels = [absolute_label(package, s) for s in strings if s.startswith(("//", ":"))]
        self.externals = [s for s in strings if s.startswith("@")]
        self.files = [os.path.normpath(os.path.join(package, s))
                      for s in strings if s and not s.startswith(("//", ":", "@", "-"))]

    def __str__(self):
        return "%s:%s" % (self.package, self.name)


def absolute_label(package, label):
    """('verbs', ':nic') -> 'verbs:nic'; '//a/b' -> 'a/b:b'."""
    if label.startswith(":"):
        return package + label
    label = label[2:]
    return label if ":" in label else "%s:%s" % (label, label.rsplit("/", 1)[-1])


class Tree:
    def __init__(self, root):
        self.root = root
        self.files = sorted(self._walk())
        self.known = set(self.files)

    def _walk(self):
        for folder, folders, names in os.walk(self.root):
            here = os.path.relpath(folder, self.root)
            folders[:] = [f for f in folders if f not in SKIPPED_FOLDERS and
                          not os.path.islink(os.path.join(folder, f)) and
                          (not f.startswith(".") or (here == "." and f == ".ci"))]
            for name in names:
                path = os.path.normpath(os.path.join(here, name))
                full = os.path.join(folder, name)
                if os.path.islink(full) or name.endswith(".pyc") or path == "compile_commands.json":
                    continue
                if here == "." and name.startswith(".") and not name.startswith(".bazel"):
                    continue
                yield path

    @functools.lru_cache(maxsize=None)
    def read(self, path):
        with open(os.path.join(self.root, path), "rb") as f:
            return f.read().decode("utf-8", "replace")

    @functools.lru_cache(maxsize=None)
    def is_text(self, path):
        with open(os.path.join(self.root, path), "rb") as f:
            return b"\0" not in f.read(8192)

    @functools.lru_cache(maxsize=None)
    def code(self, path):
        """C++ with comments and literals blanked; line numbers stay."""
        return COMMENT_OR_LITERAL.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), self.read(path))

    def of(self, *endings):
        return [f for f in self.files if f.endswith(endings)]

    def cpp(self):
        return self.of(".h", ".cc", ".cu", ".cuh", ".c")

    def includes(self, path):
        """(line, what, quoted) of each #include."""
        for number, line in enumerate(self.read(path).splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+(["<])([^">]+)[">]', line)
            if match:
                yield number, match[2], match[1] == '"'

    @functools.lru_cache(maxsize=None)
    def targets(self):
        found = []
        for build in self.files:
            if os.path.basename(build) in ("BUILD", "BUILD.bazel"):
                found.extend(self._parse(build))
        return found

    @functools.lru_cache(maxsize=None)
    def test_files(self):
        """What only tests are built from."""
        return ({f for t in self.targets() if t.for_tests for f in t.files} -
                {f for t in self.targets() if not t.for_tests for f in t.files})

    def _parse(self, build):
        package = os.path.dirname(build)
        # Starlark is close enough to Python here.
        for statement in ast.parse(self.read(build), build).body:
            for call, variables in calls(getattr(statement, "value", None)):
                if call.func.id == "load":
                    continue
                keywords = {k.arg: k.value for k in call.keywords}
                if call.func.id == "cc_tests":  # A target for each source.
                    shared = self._strings(package, keywords.get("deps"), variables)
                    for key, value in zip(keywords["tests"].keys, keywords["tests"].values):
                        strings = shared + self._strings(package, value, variables) + [key.value + ".cc"]
                        yield Target(package, "cc_test", key.value, key.lineno, build, strings, True)
                    continue
                name = (self._strings(package, keywords.get("name"), variables) or [""])[0]
                nodes = list(call.args) + [v for k, v in keywords.items() if k not in NOT_EDGES]
                strings = [s for node in nodes for s in self._strings(package, node, variables)]
                strings += self._files_without_saying(package, call.func.id, name, keywords, variables)
                for_tests = (call.func.id.endswith("_test") or
                             getattr(keywords.get("testonly"), "value", package.split("/")[0] in TEST_ROOMS))
                yield Target(package, call.func.id, name, call.lineno, build, strings, for_tests)

    def _files_without_saying(self, package, kind, name, keywords, variables):
        """What rules.bzl adds to the files that a target names, from within its package."""
        stem = name + "_main" if kind == "cc_binary" and os.path.join(package, name + "_main.cc") in self.known else name
        named = not {"parts", "srcs", "hdrs"}.isdisjoint(keywords)
        wanted = []
        if kind in HAVE_PARTS:
            parts = self._strings(package, keywords.get("parts"), variables) if named else [stem]
            wanted = [part + ending for part in parts for ending in (".cc", ".h")]
        elif kind == "sh_test" and not named:
            wanted = [name + ".sh", name + ".py"]
        found = [file for file in wanted if os.path.join(package, file) in self.known]
        if kind == "cc_fuzz_test" and "corpus" not in keywords:
            corpus = os.path.join(package, "corpus", name[:-len("_fuzz")], "")
            found += [file[len(package) + 1:] for file in self.files if file.startswith(corpus)]
        return found

    def _strings(self, package, node, variables):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "glob":
            patterns = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
            inside = package + "/" if package else ""
            return [f[len(inside):] for f in self.files if f.startswith(inside) and
                    any(fnmatch.fnmatch(f[len(inside):], str(p)) for p in patterns)]
        if isinstance(node, ast.Constant):
            return [node.value] if isinstance(node.value, str) else []
        if isinstance(node, ast.Name):
            return variables.get(node.id, [])
        if isinstance(node, ast.BinOp):
            left, right = (self._strings(package, n, variables) for n in (node.left, node.right))
            if len(left) == len(right) == 1 and not isinstance(node.left, ast.List):
                return [left[0] % right[0] if isinstance(node.op, ast.Mod) else left[0] + right[0]]
            return left + right
        return [s for child in ast.iter_child_nodes(node) for s in self._strings(package, child, variables)] if node else []


def calls(value):
    """(call, variables): a rule, or each one that a list comprehension over a list makes."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        yield value, {}
    elif isinstance(value, ast.ListComp) and isinstance(value.elt, ast.Call):
        loop = value.generators[0]
        for item in getattr(loop.iter, "elts", []):
            names = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
            items = item.elts if isinstance(item, ast.Tuple) else [item]
            yield value.elt, {n.id: [c.value for c in ast.walk(i) if isinstance(c, ast.Constant)]
                              for n, i in zip(names, items)}


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


# These files contain examples of what they forbid.
def speaks_of_rules(path):
    return path.startswith("tests/tidy/")


def lines(tree, pattern):
    for path in tree.files:
        if speaks_of_rules(path) or path == "LICENSE" or not tree.is_text(path):
            continue
        for number, line in enumerate(tree.read(path).splitlines(), 1):
            if re.search(pattern, line):
                yield path, number, line.strip()
