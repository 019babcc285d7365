"""python -m tryst COMMAND: `demo`, or a command of the tool `tryst` (docs/CLI.md)."""

import signal
import sys

from tryst import _tryst


def main():
    words = sys.argv[1:]
    if words[:1] == ["demo"]:
        from tryst import demo

        return demo.main(words[1:])
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # No Python code runs from here on.
    return _tryst.command_line(["tryst", *words])


sys.exit(main())
