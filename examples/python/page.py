#!/usr/bin/env python3
"""page.py SCRIPT PAGE: runs a script of cells (# %%) and writes a page with their text, their code and what they print.

A cell "# %% plot" calls plot(title, labels, series), which draws a picture beside the page.
"""
import contextlib
import io
import math
import pathlib
import re
import sys

COLOURS = ("#269", "#c63", "#383")


def picture(title, labels, series):
    """Lines over labels, on a scale of powers of ten, as SVG."""
    width, height, left, top = 720, 280, 60, 40
    values = [value for line in series.values() for value in line]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))

    def at(i, value):
        return (left + (width - left - 30) * i / (len(labels) - 1),
                top + (height - top - 40) * (high - math.log10(value)) / (high - low))

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
             f'font-size="11"><rect width="100%" height="100%" fill="#fff"/><text x="{left}" y="16">{title}</text>']
    for power in range(low, high + 1):
        y = at(0, 10.0**power)[1]
        parts.append(f'<line x1="{left}" x2="{width - 30}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
                     f'<text x="8" y="{y + 4:.1f}">{10.0**power:g}</text>')
    for i, label in enumerate(labels):
        parts.append(f'<text x="{at(i, values[0])[0]:.1f}" y="{height - 12}" text-anchor="middle">{label}</text>')
    for i, (name, line) in enumerate(series.items()):
        points = " ".join("%.1f,%.1f" % at(j, value) for j, value in enumerate(line))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[i]}" stroke-width="1.5"/>'
                     f'<text x="{left + 220 * i}" y="32" fill="{COLOURS[i]}">{name}</text>')
    return "\n".join(parts) + "\n</svg>\n"


def main():
    script, page = map(pathlib.Path, sys.argv[1:])
    pictures = []
    parts = [f"<!-- Made by {script.name}. -->\n"]

    def plot(title, labels, series):
        path = page.with_name(f"{page.stem}_{len(pictures) + 1}.svg")
        path.write_text(picture(title, labels, series), encoding="utf-8")
        pictures.append((title, path.name))

    names = {"__name__": "__main__", "plot": plot}
    for kind, body in re.findall(r"^# %%(.*)\n((?:(?!# %%).*\n?)*)", script.read_text(encoding="utf-8"), re.M):
        if "markdown" in kind:
            parts.append(re.sub(r"^# ?", "", body.strip(), flags=re.M) + "\n")
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(body, str(script), "exec"), names)
        if "plot" not in kind:
            parts.append(f"```python\n{body.strip()}\n```\n")
        if printed.getvalue():
            parts.append(f"```\n{printed.getvalue().rstrip()}\n```\n")
        parts += [f"![{title}]({name})\n" for title, name in pictures]
        pictures.clear()
    page.write_text("\n".join(parts), encoding="utf-8")


main()
