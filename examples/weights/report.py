"""What train.py checks and shows of a run."""
import bisect
import itertools
import os
import pathlib
import statistics

import model
import numpy
from engine import LETTERS, LINES, PROMPT
from trainer import RANKS, rows_of, unflat

COLOURS = {"a": "#269", "b": "#c63"}


def percentile(values, part):
    """The value below which that part of them lies: the largest one where they are few."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else float("nan")


def weights_of(folder, number, shapes):
    """A version as its owners kept it, and not as an engine has it."""
    whole = {name: numpy.empty(shape, "f") for name, shape in shapes.items()}
    for rank in range(RANKS):
        with numpy.load(os.path.join(folder, f"{number}.{rank}.npz")) as file:
            unflat(file["mine"], rows_of(shapes, rank), whole)
    return whole


def likely(weights, letters):
    """How likely the model of one version finds what was added to the lines of an answer."""
    letters = numpy.array(letters)
    scores = model.logits(numpy, weights, letters[:, :-1])[:, PROMPT - 1:]
    return float(numpy.take_along_axis(scores, letters[:, PROMPT:, None], -1).mean())


def pauses(answers, switched_by):
    """(milliseconds, mode, when) of each switch: from the last answer of a version to the first one of the next."""
    found = []
    for before, after in itertools.pairwise(answers):
        if before["life"] == after["life"] and before["version"] != after["version"]:
            found.append((1e3 * (after["begun"] - before["at"]), switched_by.get(after["version"], "rolling"), after["begun"]))
    return found


def report(said, happened, folder, options):
    """Prints what was seen; whether all was as promised."""
    def of(kind):
        return sorted((one for one in said if one["kind"] == kind), key=lambda one: one["at"])

    wrong, answers, turns, activated = [], of("answer"), of("turn"), of("activated")
    by_engine = {name: [one for one in answers if one["who"][0] == name] for name in COLOURS}
    losses = [one["loss"] for one in turns]
    fell = statistics.mean(losses[-3:]) < statistics.mean(losses[:3]) - 0.5
    if not fell:
        wrong.append("the loss does not fall")
    print(f"{options.library}: {RANKS} trainers, {len(COLOURS)} engines of 2 ranks, {options.layers} layers")
    print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f} in {turns[-1]['turn']} turns; "
          f"{len({one['number'] for one in of('sealed')})} versions sealed, {len(activated)} active, {len(of('dropped'))} dropped")
    begun = answers[0]["begun"]
    for at, what in happened:
        print(f"{at - begun:6.1f} s  {what}")

    # Each answer is that of its version's weights, as the owners kept them.
    shapes, kept, mixed = model.shapes(options.layers), {}, sum(one["mixed"] for one in of("done") if "mixed" in one)
    for one in answers:
        if one["version"] not in kept:
            kept[one["version"]] = weights_of(folder, one["version"], shapes)
        mixed += abs(likely(kept[one["version"]], one["letters"]) - one["likely"]) > 1e-3
    # That says something only if neighbours differ by more.
    last = answers[-1]["letters"]
    alike = sum(abs(likely(kept[a], last) - likely(kept[b], last)) < 1e-3 for a, b in itertools.pairwise(sorted(kept)))
    if alike > len(kept) // 4:
        wrong.append("too many versions cannot be told apart by their answers")
    # When an activation has returned, all have switched or have no permit any more. So a later answer of a version before
    # it would come without one; and under a barrier no answer of it may overlap with one of another version.
    ends, numbers = [one["at"] for one in activated], [one["number"] for one in activated]
    without = sum(at > 0 and one["version"] < numbers[at - 1]
                  for one in answers for at in [bisect.bisect_left(ends, one["begun"])])
    mode_of = {one["number"]: one["mode"] for one in of("activated") + of("dropped")}
    overlaps = sum(mode_of.get(max(one["version"], two["version"])) == "barrier"
                   for one, two in itertools.combinations(answers, 2)
                   if one["version"] != two["version"] and one["begun"] < two["at"] and two["begun"] < one["at"])
    for count, what in ((mixed, "answers mixed two versions"), (without, "answers came without a permit"),
                        (overlaps, "answers overlapped with one of another version at a barrier")):
        print(f"{count} of {len(answers)} {what}")
        if count:
            wrong.append(what)

    for mode in "rolling", "barrier":
        found = [ms for one in by_engine.values() for ms, how, _ in pauses(one, mode_of) if how == mode]
        took = [1e3 * (one["at"] - one["begun"]) for one in activated if one["mode"] == mode]
        if found:
            print(f"{mode}: the loop stood p50 {percentile(found, 0.5):.1f} ms, p99 {percentile(found, 0.99):.1f} ms at {len(found)} switches; "
                  f"an activation took p50 {percentile(took, 0.5):.0f} ms")
    between = [1e3 * (b["begun"] - a["at"]) for one in by_engine.values() for a, b in itertools.pairwise(one)
               if a["version"] == b["version"] and a["life"] == b["life"]]
    print(f"between two answers of one version: p50 {percentile(between, 0.5):.1f} ms, p99 {percentile(between, 0.99):.1f} ms")
    for name, one in by_engine.items():
        print(f"engine {name}: {len(one) * LINES * LETTERS / (answers[-1]['at'] - begun):.0f} letters/s, "
              f"{len({each['version'] for each in one})} versions, at last {''.join(model.LETTERS[code] for code in one[-1]['letters'][0])!r}")
    pathlib.Path(options.svg).write_text(picture(turns, by_engine, mode_of, happened, begun, answers[-1]["at"]), encoding="utf-8")
    print("a picture:", options.svg)
    print("wrong: " + "; ".join(wrong) if wrong else "all is as promised")
    return not wrong


def picture(turns, by_engine, mode_of, happened, begun, end):
    """Loss, letters a second, versions in use and pauses, over the seconds: an SVG."""
    width, height, left = 760, 110, 60
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + 20} {4 * (height + 30) + 30}" font-family="sans-serif" '
             'font-size="11"><rect width="100%" height="100%" fill="#fff"/>']

    def panel(row, title, series, line):
        """`series` has points of (seconds, value) by their colour."""
        top, values = 24 + row * (height + 30), [value for points in series.values() for _, value in points] or [0]
        low, high = min(0, *values, 0), max(*values, 1e-9, 1e-9)
        parts.append(f'<text x="{left}" y="{top - 6}">{title}</text><rect x="{left}" y="{top}" width="{width - left}" '
                     f'height="{height}" fill="none" stroke="#ccc"/><text x="4" y="{top + 10}">{high:.4g}</text>'
                     f'<text x="4" y="{top + height}">{low:.4g}</text>')
        for at, _ in happened:
            x = left + (width - left) * (at - begun) / (end - begun)
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{top + height}" stroke="#c33" stroke-dasharray="4"/>')
        for colour, points in series.items():
            at = [(left + (width - left) * (seconds - begun) / (end - begun), top + height * (high - value) / (high - low))
                  for seconds, value in points if begun <= seconds <= end]
            if line:
                parts.append(f'<polyline points="{" ".join("%.1f,%.1f" % one for one in at)}" fill="none" stroke="{colour}"/>')
            else:
                parts.extend(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{colour}"/>' for x, y in at)

    panel(0, "loss", {"#383": [(one["at"], one["loss"]) for one in turns]}, True)
    rates, steps = {}, numpy.arange(begun, end, 0.5)
    for name, answers in by_engine.items():
        counts, _ = numpy.histogram([one["at"] for one in answers], numpy.append(steps, steps[-1] + 0.5))
        rates[COLOURS[name]] = [(at + 0.25, 2 * LINES * LETTERS * count) for at, count in zip(steps.tolist(), counts.tolist())]
    panel(1, "letters a second, of engine a (blue) and b (orange)", rates, True)
    panel(2, "version of each answer", {COLOURS[name]: [(one["at"], one["version"]) for one in answers]
                                        for name, answers in by_engine.items()}, False)
    panel(3, "milliseconds that the loop stood at a switch",
          {COLOURS[name]: [(at, ms) for ms, _, at in pauses(answers, mode_of)] for name, answers in by_engine.items()}, False)
    parts.append(f'<text x="{left}" y="{4 * (height + 30) + 16}">{end - begun:.0f} s; dashed: '
                 f'{", ".join(what for _, what in happened)}</text></svg>\n')
    return "\n".join(parts)
