#!/usr/bin/python3
"""What site.py makes of a small tree: pages, menu, search, and what it says of links that lead nowhere."""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True

import case_report  # noqa: E402

try:
    import markdown_it  # noqa: F401
except ImportError:
    markdown_it = None

TREE = {
    "README.md": "# Tryst\n\nBegin at [the documents](docs/README.md), [here](#two).\n\n## Two\n",
    "docs/README.md": "# Documents\n\n## Who runs it\n\n| | |\n| --- | --- |\n| [ARCHITECTURE.md](ARCHITECTURE.md) | a thing |\n",
    "docs/ARCHITECTURE.md": "<!-- printed -->\n# A *page*\n\n![drawn](a.svg) [code](../base/x.h) [b](decisions) "
                            "[out](https://x.org)\n\n"
                 "## `Take` it\n\nThe orchard.\n\n| a | b |\n| --- | ---: |\n| 1 < 2 | <b>3</b> |\n\n```\ncode & more\n```\n\n"
                 "## `Take` it\n\n[up](#take-it-1)\n\n* one\n  * two\n",
    "docs/a.svg": "<svg/>",
    "docs/decisions/README.md": "# Decisions\n\n[0001](0001-mutex.md)\n",
    "docs/decisions/0001-mutex.md": "# First\n\n[up](../ARCHITECTURE.md#take-it)\n",
    "base/x.h": "template <class T>\n",
    "base/other.h": "",
}


@unittest.skipIf(markdown_it is None, "needs python3-markdown-it")
class SiteTest(unittest.TestCase):
    def make(self, files=()):
        """Makes the site of TREE with `files` in it; returns (exit code, output, {page: text})."""
        with tempfile.TemporaryDirectory() as root:
            for path, text in {**TREE, **dict(files)}.items():
                full = os.path.join(root, path)
                os.makedirs(os.path.dirname(full), exist_ok=True)
                with open(full, "w") as f:
                    f.write(text)
            out = os.path.join(root, "out/site")
            run = subprocess.run([sys.executable, os.path.join(HERE, "site.py"), "--root", root],
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
            pages = {}
            for folder, _, names in os.walk(out):
                for name in names:
                    with open(os.path.join(folder, name)) as f:
                        pages[os.path.relpath(os.path.join(folder, name), out)] = f.read()
            return run.returncode, run.stdout, pages

    def test_every_document_is_a_page_and_what_it_links_to_is_shown(self):
        code, said, pages = self.make()
        self.assertEqual(code, 0, said)
        self.assertEqual(sorted(pages), ["base/x.h.html", "docs/ARCHITECTURE.html", "docs/a.svg", "docs/decisions/0001-mutex.html",
                                         "docs/decisions/index.html", "docs/index.html", "index.html", "search.js",
                                         "site.css", "site.js"])
        self.assertIn("template &lt;class T&gt;", pages["base/x.h.html"])

    def test_links_lead_to_pages(self):
        page = self.make()[2]["docs/ARCHITECTURE.html"]
        for link in ('src="a.svg"', 'href="../base/x.h.html"', 'href="decisions/index.html"', 'href="https://x.org"',
                     'href="#take-it-1"', 'href="../site.css"'):
            self.assertIn(link, page)
        self.assertIn('href="../ARCHITECTURE.html#take-it"', self.make()[2]["docs/decisions/0001-mutex.html"])

    def test_markdown_is_as_github_reads_it(self):
        page = self.make()[2]["docs/ARCHITECTURE.html"]
        self.assertIn('<h2 id="take-it">', page)
        self.assertIn('<h2 id="take-it-1">', page)
        self.assertIn("<td>1 &lt; 2</td>", page)
        self.assertIn("&lt;b&gt;3&lt;/b&gt;", page)
        self.assertIn("code &amp; more", page)
        self.assertNotIn("printed", page)
        self.assertRegex(page, r"<li>one\s*<ul>\s*<li>two</li>")

    def test_the_menu_follows_the_index(self):
        page = self.make()[2]["docs/ARCHITECTURE.html"]
        menu = re.search(r"<nav.*?</nav>", page, re.DOTALL)[0]
        self.assertRegex(menu, r'(?s)<h2>Who runs it</h2>\s*<ul>\s*<li><a href="ARCHITECTURE.html" aria-current="page">A page</a>')
        self.assertIn('<li><a href="#take-it">Take it</a></li>', menu)

    def test_search_has_the_text_of_each_part(self):
        text = self.make()[2]["search.js"]
        entries = json.loads(re.fullmatch(r"tryst_search\((.*)\);\n", text, re.DOTALL)[1])
        self.assertIn(["docs/ARCHITECTURE.html", "A page", "take-it", "Take it", "The orchard. a b 1 < 2 <b>3</b> code & more"],
                      entries)
        self.assertIn(["index.html", "Tryst", "two", "Two", ""], entries)

    def test_what_is_wrong_is_said(self):
        for files, why in [({"docs/ARCHITECTURE.md": "# A\n[x](GONE.md)\n"}, "docs/ARCHITECTURE.md: the link GONE.md leads nowhere"),
                           ({"docs/ARCHITECTURE.md": "# A\n[x](README.md#gone)\n"}, "index.html#gone: that page has no such heading"),
                           ({"docs/ARCHITECTURE.md": "# A\n![x](https://x.org/a.png)\n"}, "fetches https://x.org/a.png")]:
            with self.subTest(why):
                code, said, _ = self.make({"docs/decisions/0001-mutex.md": "# First\n", **files})
                self.assertEqual(code, 1)
                self.assertIn(why, said)


if __name__ == "__main__":
    case_report.main()
