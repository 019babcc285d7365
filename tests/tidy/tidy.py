#!/usr/bin/env python3
"""Checks the source tree against the rules of the house.

  tests/tidy/tidy.py [--forget|--list] [ROOT]     ROOT is by default the tree that this file lies in
  --forget                                 first takes what is gone off given_up_names.txt and comments_without_subject.txt
  --list                                   prints each rule and what it keeps, and checks nothing
"""
import os
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, HERE)

import rules  # noqa: E402
import sizes  # noqa: E402
import tree  # noqa: E402


def main():
    if sys.argv[1:] == ["--list"]:
        for rule in rules.RULES:
            print("%-22s %s" % (rule.__name__, " ".join(rule.__doc__.split())))
        return 0
    arguments = [a for a in sys.argv[1:] if a != "--forget"]
    root = os.path.abspath(arguments[0]) if arguments else os.path.dirname(os.path.dirname(HERE))
    if not os.path.exists(os.path.join(root, "WORKSPACE")):
        sys.exit("%s is not the source tree: it has no WORKSPACE" % root)
    if len(arguments) < len(sys.argv) - 1:
        rules.forget(tree.Tree(root))
    whole = tree.Tree(root)
    breaches = [(rule.__name__, line) for rule in rules.RULES for line in rule(whole)]
    for rule, line in breaches:
        print("%s  [%s]" % (line, rule))
    sizes.report(whole)
    print("tidy: %d files, %d rules, %d breaches" % (len(whole.files), len(rules.RULES), len(breaches)))
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
