"""Figures of many runs: medians, JSON lines, a Markdown table."""
import collections
import contextlib
import json
import os
import platform
import statistics
import subprocess
import time

# Less is better of all others.
MORE_IS_BETTER = {"delivery", "tensors_per_s", "ps_steps_per_s", "ps_steps_per_s_3_workers", "incast",
                  "delivery_8_producers", "tensors_per_s_4_producers"}


def busy_seconds():
    """Of all CPUs since the start of the machine."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq = [int(v) for v in file.readline().split()[1:8]]
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def ours_seconds():
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class Taken:
    """What was measured: values by (figure, system, size)."""

    def __init__(self):
        self.values = collections.OrderedDict()
        self.units = {}
        self.other_cores = []

    def add(self, system, rows):
        for figure, size, value, unit in rows:
            self.values.setdefault((figure, system, size), []).append(value)
            self.units[figure] = unit

    @contextlib.contextmanager
    def watch_others(self):
        """Notes how many cores everybody else used meanwhile."""
        busy, ours, began = busy_seconds(), ours_seconds(), time.time()
        yield
        took = time.time() - began
        if took > 0.2:  # Ticks are too coarse for less.
            # Producers are killed as grandchildren and not counted as ours where init reaps them.
            self.other_cores.append(max(0.0, busy_seconds() - busy - (ours_seconds() - ours)) / took)

    def others(self):
        return statistics.median(self.other_cores) if self.other_cores else 0.0

    def lines(self):
        """One for each figure; `others` is how many cores everybody else used meanwhile."""
        meanwhile = {"others": round(self.others(), 1)} if self.other_cores else {}
        return [dict({"figure": figure, "system": system, "size_bytes": size,
                      "value": rounded(statistics.median(values)), "unit": self.units[figure],
                      "min": rounded(min(values)), "max": rounded(max(values)), "runs": len(values)}, **meanwhile)
                for (figure, system, size), values in self.values.items()]


def rounded(value):
    return float("%.5g" % value)


def machine():
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        model = next((l.split(":", 1)[1].strip() for l in file if l.startswith("model name")), model)
    return "%d x %s, Linux %s" % (os.cpu_count(), model, platform.release().split("-")[0])


def commit(root):
    try:
        name = subprocess.check_output(["git", "-C", root, "rev-parse", "--short=12", "HEAD"], text=True,
                                       stderr=subprocess.DEVNULL).strip()
        dirty = subprocess.call(["git", "-C", root, "diff", "--quiet", "HEAD", "--", "."], stderr=subprocess.DEVNULL)
        return name + ("+" if dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def write(lines, json_file, history_file, root):
    """Into `json_file`, or if there is none with commit and machine at the end of the history."""
    if json_file:
        with open(json_file, "w") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        return
    origin = {"commit": commit(root), "machine": machine(), "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    with open(history_file, "a") as file:
        file.writelines(json.dumps(dict(line, **origin)) + "\n" for line in lines)


def read(path):
    with open(path) as file:
        return [json.loads(line) for line in file if line.strip()]


def size_name(size):
    for factor, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= factor:
            return "%g %s" % (round(size / factor, 1), name)
    return "%d B" % size


def number(value):
    if value >= 1e5:
        return "%.3gM" % (value / 1e6)
    return "%.3g" % value if value < 100 else "%.0f" % value


def cell(line):
    return "%s <sub>%s–%s</sub>" % (number(line["value"]), number(line["min"]), number(line["max"]))


def markdown(lines):
    """Systems down, figures across; one table for each figure."""
    out = []
    by_figure = collections.OrderedDict()
    for line in lines:
        by_figure.setdefault((line["figure"], line["unit"]), []).append(line)
    for (figure, unit), rows in by_figure.items():
        sizes = sorted({row["size_bytes"] for row in rows})
        names = list(collections.OrderedDict.fromkeys(row["system"] for row in rows))
        by_cell = {(row["system"], row["size_bytes"]): cell(row) for row in rows}
        better = "more" if figure in MORE_IS_BETTER else "less"
        out.append("\n%s, %s (%s is better)\n" % (figure, unit, better))
        out.append("| system | %s |" % " | ".join(size_name(size) for size in sizes))
        out.append("| --- |%s" % (" ---: |" * len(sizes)))
        out += ["| %s | %s |" % (name, " | ".join(by_cell.get((name, size), "") for size in sizes)) for name in names]
    runs = sorted({line["runs"] for line in lines})
    others = sorted({line["others"] for line in lines if "others" in line})
    out.append("\n%s; medians of %s interleaved runs, extremes beside them%s."
               % (machine(), "–".join(str(n) for n in sorted({runs[0], runs[-1]})),
                  "; others used %s cores meanwhile" % "–".join("%.1f" % n for n in sorted({others[0], others[-1]}))
                  if others else ""))
    return "\n".join(out)
