"""What the documents name is in the tree: paths, targets, verbs and flags of ./run, settings, variables, identifiers."""
import fnmatch
import os
import re

# Records and release notes describe their time.
OF_THEIR_TIME = re.compile(r"CHANGELOG\.md|docs/decisions/\d.*")
SPAN = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
PATH = re.compile(r"(?:\./)?([\w.-]+(?:/[\w.*-]+)+/?|[\w-]+/)")
FILE = re.compile(r"[\w-]+\.(?:h|cc|cu|py|sh|proto|md|pml|bzl|txt|yaml|sbatch)")
TARGET = re.compile(r"(?://)?([\w./-]*):([\w.-]+)")
RUN = re.compile(r"(?<![\w/])\./run[ \t]+([a-z][\w-]*)")
FLAG = re.compile(r"(?<![\w-])--([a-z][\w-]*)")
VARIABLE = re.compile(r"\bTRYST_[A-Z0-9_]+\b")
IDENTIFIER = re.compile(r"(?:[A-Za-z_]\w*(?:::|\.|->))*([A-Z][a-z]+[A-Z]\w*|k[A-Z]\w*|[a-z]+(?:_[a-z0-9]+)+)(?:\(\))?")
# Programs of others, with their own flags and names.
OTHERS_COMMANDS = re.compile(
    r"\b(bazel|gdb|pip|cmake|perf|nm|ip|tc|docker|kubectl|mpirun|mpiexec|srun|sbatch|etcdctl|openssl|curl|apt-get|git|modprobe|"
    r"nvidia-smi|ulimit|sysctl|rdma|ibv_\w+|c\+\+|g\+\+|cc|gcc|readelf|qemu\S*|callgrind|valgrind|python3? -m venv)\b")
BAZELS_FLAGS = {"runs_per_test"}  # `./run test` passes these on.
KERNELS_NAMES = {"clear_page_erms"}
# Documents that have to use names of others, and whose.
NAMES_OF_OTHERS = {
    "docs/TENSORFLOW.md": "TensorFlow's",
    "docs/NCCL.md": "NCCL's and PyTorch's",
    "docs/GPU_NOTES.md": "CUDA's and the drivers'",
    "docs/OPERATIONS.md": "the kernel's and the tools'",
    "docs/TROUBLESHOOTING.md": "the kernel's and the tools'",
    "docs/BENCHMARKS.md": "the kernel's and the peers'",
    "docs/PYTHON.md": "Python's, Ray's and torch's",
}


def said(text):
    """(offset, span, fenced) of what a document shows as code."""
    fenced = []
    for match in FENCE.finditer(text):
        fenced.append((match.start(), match.end()))
        offset = match.start()
        for line in match[0].splitlines(True)[1:-1]:
            offset = text.index(line, offset)
            yield offset, line.split("  #")[0].rstrip("\n"), True
    for match in SPAN.finditer(text):
        if not any(begin <= match.start() < end for begin, end in fenced):
            yield match.start(1), match[1], False


class Known:
    """What the tree has, under the names by which documents call it."""

    def __init__(self, tree):
        self.files = set(tree.files)
        self.folders = {os.path.dirname(f) for f in tree.files}
        self.folders |= {a for f in self.folders for a in parents(f)}
        self.names = {os.path.basename(f) for f in tree.files}
        self.tops = {f.split("/", 1)[0] for f in tree.files if "/" in f}
        self.targets = {str(t) for t in tree.targets()}
        self.packages = {t.package for t in tree.targets()}
        run = "\n".join(tree.read(f) for f in tree.files if f == "run" or f.startswith("tools/verbs/"))
        self.verbs = set(re.findall(r"^verb_([\w-]+)\(\)", run, re.MULTILINE))
        texts = [tree.read(f) for f in tree.files if not f.endswith((".md", ".svg", ".jsonl")) and tree.is_text(f)]
        self.words = set(word for text in texts for word in re.findall(r"[A-Za-z_][\w-]*", text))
        self.words |= {name.rsplit(".", 1)[0] for name in self.names}
        self.words |= {part for word in self.words for part in word.split("-")}

    def has_path(self, path):
        path = path.rstrip("/")
        if path in self.files or path in self.folders or "*" in path and fnmatch.filter(self.files, path):
            return True
        # `channel/ops/fetch_op` stands for its header and its source; `a/b_test` is a target.
        return any(path + end in self.files for end in (".h", ".cc", ".py")) or \
            "%s:%s" % tuple(path.rsplit("/", 1)) in self.targets if "/" in path else False

    def has_target(self, package, name):
        return "%s:%s" % (package, name) in self.targets or os.path.join(package, name) in self.files or \
            any(t.startswith(package + ":") and t.endswith(name) for t in self.targets) or name in ("all", "...")

    def has_flag(self, name):
        return name in self.words or name.replace("-", "_") in self.words or (
            name.startswith("no") and name[2:] in self.words)


def parents(folder):
    while "/" in folder:
        folder = folder.rsplit("/", 1)[0]
        yield folder


def unknown(known, path, span, fenced):
    """What `span` names and the tree has not."""
    for verb in RUN.findall(span):
        if verb not in known.verbs:
            yield "./run has no verb %s" % verb
    for name in VARIABLE.findall(span):
        if name not in known.words and name[len("TRYST_"):].lower() not in known.words:
            yield "nothing reads the variable %s" % name
    if not OTHERS_COMMANDS.search(span):
        for flag in FLAG.findall(span):
            if flag not in BAZELS_FLAGS and not known.has_flag(flag):
                yield "nothing takes the flag --%s" % flag
    if fenced:
        return
    target = TARGET.fullmatch(span)
    if target and target[1] in known.packages:
        if not known.has_target(target[1], target[2]):
            yield "there is no target %s" % span
        return
    where = PATH.fullmatch(span)
    if where and where[1].split("/")[0] in known.tops and not where[1].startswith("out/") and "NAME" not in span:
        if not known.has_path(where[1]):
            yield "there is no %s" % span
    elif path in NAMES_OF_OTHERS:
        return
    elif FILE.fullmatch(span):
        if span not in known.names and "NAME" not in span:
            yield "there is no file %s" % span
    else:
        name = IDENTIFIER.fullmatch(span)
        if name and name[1] not in known.words | KERNELS_NAMES:
            yield "nothing in the tree is called %s" % name[1]


def documents(tree):
    """What the documents name is in the tree."""
    known = Known(tree)
    for path in tree.of(".md"):
        if OF_THEIR_TIME.fullmatch(path) or path.startswith("tests/"):
            continue
        text = tree.read(path)
        for offset, span, fenced in said(text):
            for what in unknown(known, path, span, fenced):
                yield "%s:%d: %s" % (path, text.count("\n", 0, offset) + 1, what)
