"""Bar charts as SVG, by hand: no plotting library is needed to look at a figure."""
import math
import os

from figures import MORE_IS_BETTER, number, size_name

COLOURS = {"tryst": "#1565c0", "limit": "#9e9e9e"}
PEER = "#ef9a3c"
LEFT, BAR, GAP, WIDTH, TOP = 190, 16, 6, 860, 46


def colour(system):
    return COLOURS.get(system.split("_")[0], PEER)


def escaped(text):
    return text.replace("&", "&amp;").replace("<", "&lt;")


def bars(title, rows):
    """Logarithmic, best first; a thin line from the least to the most that was measured."""
    low = min(row["min"] for row in rows)
    high = max(row["max"] for row in rows)
    first, last = math.floor(math.log10(max(low, 1e-9))), math.ceil(math.log10(high))
    span = max(1, last - first)

    def x(value):
        return LEFT + (WIDTH - LEFT - 80) * (math.log10(max(value, 1e-9)) - first) / span

    height = TOP + len(rows) * (BAR + GAP) + 16
    out = ['<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">'
           % (WIDTH, height), '<rect width="100%" height="100%" fill="white"/>',
           '<text x="10" y="20" font-size="15">%s</text>' % escaped(title)]
    for power in range(first, last + 1):
        out.append('<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#e0e0e0"/>'
                   % (x(10.0 ** power), x(10.0 ** power), TOP - 8, height - 14))
        out.append('<text x="%.1f" y="%d" fill="#757575" text-anchor="middle">%g</text>'
                   % (x(10.0 ** power), TOP - 12, 10.0 ** power))
    for index, row in enumerate(rows):
        y = TOP + index * (BAR + GAP)
        out.append('<text x="%d" y="%d" text-anchor="end">%s</text>' % (LEFT - 8, y + 13, escaped(row["system"])))
        out.append('<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>'
                   % (LEFT, y, max(1.0, x(row["value"]) - LEFT), BAR, colour(row["system"])))
        out.append('<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="black"/>'
                   % (x(row["min"]), x(row["max"]), y + BAR // 2, y + BAR // 2))
        out.append('<text x="%.1f" y="%d">%s</text>'
                   % (x(row["max"]) + 6, y + 13, number(row["value"])))
    return "\n".join(out + ["</svg>", ""])


def write_all(lines, folder):
    os.makedirs(folder, exist_ok=True)
    wanted = [("pull_p50", 8), ("pull_p50", 65536), ("delivery", 65536), ("delivery", 16 << 20), ("tensors_per_s", 64),
              ("ps_steps_per_s", None)]
    for figure, size in wanted:
        rows = [line for line in lines if line["figure"] == figure and size in (None, line["size_bytes"])]
        if not rows:
            continue
        rows.sort(key=lambda row: row["value"], reverse=figure in MORE_IS_BETTER)
        title = "%s of %s, %s: %s is better" % (figure, size_name(rows[0]["size_bytes"]), rows[0]["unit"],
                                               "more" if figure in MORE_IS_BETTER else "less")
        name = "%s_%s.svg" % (figure, rows[0]["size_bytes"]) if size else figure + ".svg"
        with open(os.path.join(folder, name), "w") as file:
            file.write(bars(title, rows))
