#!/usr/bin/env python3
"""Has Tryst become slower? Compares ratios within one run with those of earlier runs.

  bench/compare.py NEW.json HISTORY.jsonl [--seed-slow SYSTEM FACTOR]

A time says as much of the machine as of us; a ratio to a peer or a limit that was measured in
the same rounds says less of the machine. Of each, the best round counts: what else the machine did
has made it no better than it is. A run beside which others used more than half a core judges
processor time alone, as who sleeps and who spins share a busy processor very differently. A ratio is
out of bounds when it is worse than BOUND times the median of the last twenty runs that have it, and
worse than the worst of them by MARGIN. A figure of ours is slower when its ratio to every reference
is: one that is slower beside one of them alone says that this one is faster here, as a sleeping
socket is where a wake-up stays on its processor. Exit code 1: one is slower.
"""
import collections
import statistics
import sys

sys.dont_write_bytecode = True
import figures  # noqa: E402

RUNS, LEAST_RUNS = 20, 3
# Machines that do other things too vary by more than a half; a path that has lost its way
# (a timer in place of a wake-up, a copy too many, a lock held) costs more than twice.
BOUND, MARGIN = 2.0, 1.25

# Whose figures are divided by whose: by those that wait as they do, by spinning or asleep.
REFERENCES = {
    "tryst_soft": ("limit_socket", "ucx_tcp", "grpc_tuned_tcp"),
    "tryst_soft_many": ("limit_socket", "ucx_tcp", "grpc_tuned_tcp"),
    "tryst_grpc": ("grpc_tuned_tcp", "grpc_tcp"),
    "tryst_shm_copy": ("limit_stream_copy", "limit_ring", "ucx_shm"),
    "tryst_shm_ref": ("limit_ring", "ucx_shm"),
    "tryst_shm_many": ("limit_ring", "ucx_shm"),
    "tryst_rxe": ("limit_perftest",),
}
FIGURES = ("pull_p50", "delivery", "tensors_per_s", "cpu_per_gib", "cpu_per_million")
BUSY_CORES = 0.5
BUSY_FIGURES = ("cpu_per_gib", "cpu_per_million")


def is_busy(line):
    """Whether others used the machine meanwhile; of a run that does not say it is assumed."""
    return line.get("others", BUSY_CORES + 1) > BUSY_CORES


def ratios(lines):
    """How many times worse than its references: {(figure, size, system): {reference: ratio}}."""
    values = {}
    for line in lines:
        if "size_bytes" in line and line["figure"] in (BUSY_FIGURES if is_busy(line) else FIGURES):
            best = line.get("max" if line["figure"] in figures.MORE_IS_BETTER else "min", line["value"])
            values[line["figure"], line["size_bytes"], line["system"]] = best
    out = collections.OrderedDict()
    for (figure, size, system), value in values.items():
        for reference in REFERENCES.get(system, ()):
            other = values.get((figure, size, reference))
            if other and value:
                more = figure in figures.MORE_IS_BETTER
                out.setdefault((figure, size, system), {})[reference] = other / value if more else value / other
    return out


def runs_of(history):
    """The last runs, oldest first, each its lines."""
    runs = collections.OrderedDict()
    for line in history:
        runs.setdefault((line.get("at"), line.get("commit")), []).append(line)
    return list(runs.values())


Beside = collections.namedtuple("Beside", "reference ratio median bound")


def compare(new, history):
    """[(name, [Beside], slower)] of what the history knows, and the names of what it does not know."""
    known = collections.defaultdict(list)
    for run in runs_of(history):
        for key, beside in ratios(run).items():
            for reference, ratio in beside.items():
                known[key, reference].append(ratio)
    judged, unknown = [], []
    for key, beside in ratios(new).items():
        name = "%s %s: %s" % (key[0], figures.size_name(key[1]), key[2])
        seen = []
        for reference, ratio in beside.items():
            past = known[key, reference][-RUNS:]
            if len(past) >= LEAST_RUNS:
                median = statistics.median(past)
                seen.append(Beside(reference, ratio, median, max(BOUND * median, MARGIN * max(past))))
        if seen:
            judged.append((name, seen, all(one.ratio > one.bound for one in seen)))
        else:
            unknown.append(name)
    return judged, unknown


def slowed(lines, system, factor):
    """As if `system` had become `factor` times slower: what the comparison must notice."""
    def slower(line):
        by = 1 / factor if line["figure"] in figures.MORE_IS_BETTER else factor
        return dict(line, **{name: line[name] * by for name in ("value", "min", "max") if name in line})

    return [slower(line) if line["system"] == system else line for line in lines]


def main(arguments):
    if len(arguments) not in (2, 5) or (len(arguments) == 5 and arguments[2] != "--seed-slow"):
        print(__doc__, file=sys.stderr)
        return 2
    new = figures.read(arguments[0])
    if len(arguments) == 5:
        new = slowed(new, arguments[3], float(arguments[4]))
    judged, unknown = compare(new, figures.read(arguments[1]))
    for name, seen, slower in judged:
        print("%s  %s" % ("SLOWER" if slower else "ok    ", name))
        for one in seen:
            print("        %6.2f times %-18s was %6.2f, may be %6.2f" % (one.ratio, one.reference, one.median, one.bound))
    if unknown:
        print("%d figures have no history yet" % len(unknown))
    if any(is_busy(line) for line in new):
        print("others used the machine: of such figures processor time alone is judged")
    failures = sum(1 for one in judged if one[-1])
    print("%d passed, %d failed, %d skipped" % (len(judged) - failures, failures, len(unknown)))
    return 1 if failures or not judged and not unknown else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
