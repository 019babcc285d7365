"""Is it a document of the trace event format, as Perfetto and chrome://tracing read it?"""


def check(trace):
    """Raises AssertionError; returns the slices (ph X) by (pid, tid)."""
    assert isinstance(trace["traceEvents"], list)
    slices = {}
    arrows = {}
    for event in trace["traceEvents"]:
        assert event["ph"] in ("M", "X", "s", "f"), event
        assert isinstance(event["name"], str) and event["name"], event
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int), event
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name"), event
            assert isinstance(event["args"]["name"], str), event
            continue
        assert event["ts"] >= 0 and isinstance(event["cat"], str), event
        if event["ph"] == "X":
            assert event["dur"] >= 0, event
            slices.setdefault((event["pid"], event["tid"]), []).append(event)
        else:
            arrows.setdefault((event["cat"], event["name"], event["id"]), []).append(event)
    for line in slices.values():
        nests(line)
    for ends in arrows.values():
        assert [end["ph"] for end in ends] == ["s", "f"], ends
        assert ends[1]["ts"] >= ends[0]["ts"], ends
        for end in ends:  # A viewer does not draw an arrow that starts or ends outside a slice.
            line = slices[end["pid"], end["tid"]]
            assert any(s["ts"] <= end["ts"] <= s["ts"] + s["dur"] for s in line), end
    return slices, arrows


def nests(line):
    """Slices of one thread lie inside each other or apart."""
    within = []
    for at in sorted(line, key=lambda s: (s["ts"], -s["dur"])):
        end = at["ts"] + at["dur"]
        while within and within[-1] <= at["ts"] + 1e-6:
            within.pop()
        assert not within or end <= within[-1] + 1e-3, (at, within)
        within.append(end)
