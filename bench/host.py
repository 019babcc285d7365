#!/usr/bin/env python3
"""Tryst beside every peer and beside the machine's limits, two processes on this machine.

  bench/host.py [--quick] [--json FILE] [--only REGEX] [--work REGEX] [--rounds N] [--seconds S]
                [--within SECONDS] [--tryst PROGRAM] [--plots FOLDER] [--list]
  bench/host.py --report FILE... [--json FILE] [--plots FOLDER]

Every round runs each system once for each work, so that a slow spell hits all alike; what is
reported is the median of at least five rounds, with the extremes. Prints a Markdown table and
appends JSON lines to bench/history.jsonl, or, with --json, writes them to FILE and nothing else.
--report measures nothing: it takes the lines of runs that were made in pieces, such as one for each
work where the machine is not free for long.
"""
import argparse
import os
import re
import sys
import time

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "bench"))

import figures  # noqa: E402
import plots  # noqa: E402
import systems  # noqa: E402

QUICK_SECONDS = 150  # For the rounds; what is compiled first is not counted.


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer systems and sizes, within three minutes")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--only", default=".", metavar="REGEX", help="systems")
    parser.add_argument("--work", default=".", metavar="REGEX", help="such as 'pull 8' or delivery")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--within", type=float, metavar="SECONDS", help="begins no round that would take longer")
    parser.add_argument("--seconds", type=float, help="of each run's timed part")
    parser.add_argument("--tryst", metavar="PROGRAM", help="//bench/peers:tryst")
    parser.add_argument("--plots", metavar="FOLDER", help="writes SVG plots there")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--report", nargs="+", metavar="FILE", help="the --json of earlier runs")
    return parser.parse_args()


def programs(chosen, tryst):
    folder = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tryst-bench")
    os.makedirs(folder, exist_ok=True)
    paths = {"tryst": tryst}
    for program in sorted({one.program for one in chosen} - {"tryst"}):
        paths[program] = systems.build(ROOT, folder, program)
    chosen[:] = [one for one in chosen if not one.wheel or systems.from_wheel(folder, one.wheel)]
    return paths


def measure(options, chosen, paths, jobs):
    taken = figures.Taken()
    began, notes = time.time(), {}
    for turn in range(options.rounds):
        for work, size in jobs:
            for one in chosen:
                if paths[one.program] is None or not systems.takes_part(one, work, size) or one.name in notes:
                    continue
                with taken.watch_others():
                    rows, why = systems.run(one, paths[one.program], work, size, options.seconds)
                if why:
                    notes[one.name] = "%s %s: %s" % (work, size, why)
                    print("bench: %s left out from here on: %s" % (one.name, notes[one.name]), file=sys.stderr)
                taken.add(one.name, rows)
            for tool in sorted(systems.TOOLS):
                if not options.quick and re.search(options.only, tool):
                    taken.add(tool, systems.run_tool(tool, work, size)[0])
        print("bench: round %d of %d after %.0f s" % (turn + 1, options.rounds, time.time() - began), file=sys.stderr)
        if options.within and time.time() - began > options.within * (turn + 1) / (turn + 2):
            print("bench: no time for another round", file=sys.stderr)
            break
    return taken


def main():
    options = arguments()
    options.seconds = options.seconds or (0.08 if options.quick else 0.4)
    options.within = options.within or (QUICK_SECONDS if options.quick else None)
    chosen = [one for one in systems.SYSTEMS
              if re.search(options.only, one.name) and (one.quick or not options.quick)]
    if not options.tryst:
        chosen = [one for one in chosen if one.program != "tryst"]
    jobs = [(w, s) for w, s in systems.works(options.quick) if re.search(options.work, "%s %d" % (w, s))]
    if options.list:
        print("\n".join(one.name for one in chosen))
        return 0
    if options.report:
        lines = [line for path in options.report for line in figures.read(path)]
    else:
        lines = measure(options, chosen, programs(chosen, options.tryst), jobs).lines()
    if not lines:
        print("bench: nothing was measured", file=sys.stderr)
        return 1
    print(figures.markdown(lines))
    figures.write(lines, options.json, os.path.join(ROOT, "bench/history.jsonl"), ROOT)
    if options.plots:
        plots.write_all(lines, options.plots)
    return 0


if __name__ == "__main__":
    sys.exit(main())
