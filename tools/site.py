#!/usr/bin/python3
"""Makes a static site of the documents, in out/site: ./run site.

  site.py [--root FOLDER] [--out FOLDER]     FOLDER is by default the tree that this file lies in, and out/site in it

The pages need no network and no server: they open from the disk. Search, the two colours and the menu are in site.js and
site.css. A link that leads nowhere, and what a page would fetch from elsewhere, is named; the exit code is then 1.

Debian's Python runs this, because Debian's python3-markdown-it is what reads Markdown.
"""
import argparse
import html
import json
import os
import re
import shutil
import sys

import markdown_it

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(HERE)
sys.path.insert(0, os.path.join(ROOT, "tests/tidy"))
from links import anchor  # noqa: E402
from tree import Tree  # noqa: E402

INDEX = "docs/README.md"
TOP = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
PAGE = """<!doctype html>
<html lang="en" data-root="%(root)s">
<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>%(title)s</title>
<link rel="stylesheet" href="%(root)ssite.css"><script src="%(root)ssite.js"></script>
<header><a class="home" href="%(root)sindex.html">Tryst</a>
<div class="search"><input type="search" placeholder="Search ( / )" aria-label="Search" autocomplete="off">
<div class="found" hidden></div></div>
<button class="colours" title="light or dark" aria-label="light or dark">&#9680;</button></header>
<div class="columns"><nav aria-label="Documents"><details open><summary>Documents</summary>%(menu)s</details></nav>
<main>%(body)s</main></div>
</html>
"""


def page_of(path):
    """docs/WIRE.md -> docs/WIRE.html; a README is its folder's index; any other file -> the page that shows it."""
    if not path.endswith(".md"):
        return path + ".html"
    folder, name = os.path.split(path)
    return os.path.join(folder, "index.html" if name == "README.md" else name[:-len(".md")] + ".html")


def plain(token):
    """The text of an inline token."""
    return "".join(c.content if c.type in ("text", "code_inline") else " " if "break" in c.type else "" for c in token.children)


class Site:
    def __init__(self, root, out):
        self.tree = Tree(root)
        self.out = out
        self.documents = [p for p in self.tree.of(".md") if p.startswith("docs/") or p in TOP]
        self.markdown = markdown_it.MarkdownIt("commonmark", {"html": False}).enable("table")
        self.copied = set()  # Drawings.
        self.shown = set()  # Files of the tree that a document links to.
        self.entries = []  # What the search looks through: page, title, anchor, heading, text.
        self.wrong = []

    def read(self, path):
        return re.sub(r"^<!--.*?-->\n?", "", self.tree.read(path), flags=re.MULTILINE | re.DOTALL)

    def target(self, path, link):
        """Where a link of a document leads in the site."""
        if re.match(r"[a-z]+:", link):
            return link
        there, mark, name = link.partition("#")
        to = os.path.normpath(os.path.join(os.path.dirname(path), there)) if there else path
        if to not in self.tree.files and to + "/README.md" in self.tree.files:
            to += "/README.md"
        if to not in self.tree.files:
            self.wrong.append("%s: the link %s leads nowhere" % (path, link))
            return link
        if to.endswith((".svg", ".png")):
            self.copied.add(to)
            page = to
        else:
            if to not in self.documents:
                self.shown.add(to)
            page = page_of(to)
        return os.path.relpath(page, os.path.dirname(page_of(path)) or ".") + mark + name

    def render(self, path):
        """(title, body, [(anchor, heading)] of its parts); adds to what the search looks through."""
        tokens = self.markdown.parse(self.read(path))
        taken, title, parts = set(), path, []
        entry = None
        for at, token in enumerate(tokens):
            if token.type == "heading_open":
                inline = tokens[at + 1]
                name = anchor(inline.content, taken)
                taken.add(name)
                token.attrSet("id", name)
                title = plain(inline) if title == path else title
                if token.tag == "h2" or token.tag == "h1" and len(taken) > 1:
                    parts.append((name, plain(inline)))
                entry = [page_of(path), title, name, plain(inline), ""]
                self.entries.append(entry)
            elif token.type == "inline":
                for child in token.children:
                    for attribute in ("href", "src"):
                        if child.attrGet(attribute) is not None:
                            child.attrSet(attribute, self.target(path, child.attrGet(attribute)))
                if entry and tokens[at - 1].type != "heading_open":
                    entry[4] += plain(token) + " "
            elif token.type in ("fence", "code_block") and entry:
                entry[4] += token.content + " "
        body = self.markdown.renderer.render(tokens, self.markdown.options, {})
        body = re.sub(r"(<table>.*?</table>)", r'<div class="wide">\1</div>', body, flags=re.DOTALL)
        body = re.sub(r'(<h[2-6] id="([^"]+)">.*?)(</h[2-6]>)',
                      r'\1 <a class="here" href="#\2" aria-label="link to here">#</a>\3', body)
        return title, body, parts

    def title(self, path):
        """The first heading of a document."""
        return plain(self.markdown.parseInline(re.search(r"^# (.*)$", self.tree.read(path), re.MULTILINE)[1])[0])

    def menu(self):
        """[(group, [(document, its name)])] as the index has them; what it does not name follows."""
        groups, seen = [("", [("README.md", "Tryst"), (INDEX, "All documents")])], {"README.md", INDEX}
        for section in re.split(r"^## ", self.read(INDEX), flags=re.MULTILINE)[1:]:
            heading, text = section.split("\n", 1)
            rows = []
            for cell in re.findall(r"^\| ([^|]*\]\([^|]*) \|", text, re.MULTILINE):
                for name, link in re.findall(r"\[([^\]]+)\]\(([^)#]+)\)", cell):
                    to = os.path.normpath(os.path.join("docs", link))
                    if to in self.documents and to not in seen:
                        rows.append((to, self.title(to) if name.endswith(".md") else name))
                        seen.add(to)
            if rows:
                groups.append((heading.strip(), rows))
        return groups

    def menu_html(self, path, parts):
        lines = []
        here = os.path.dirname(page_of(path)) or "."
        for group, rows in self.menu():
            lines.append("<h2>%s</h2>" % html.escape(group) if group else "")
            lines.append("<ul>")
            for to, name in rows:
                now = ' aria-current="page"' if to == path else ""
                lines.append('<li><a href="%s"%s>%s</a>' % (os.path.relpath(page_of(to), here), now, html.escape(name)))
                if now and parts:
                    lines.append("<ul>%s</ul>" % "".join(
                        '<li><a href="#%s">%s</a></li>' % (a, html.escape(h)) for a, h in parts))
                lines.append("</li>")
            lines.append("</ul>")
        return "\n".join(lines)

    def write(self, name, text):
        full = os.path.join(self.out, name)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as f:
            f.write(text)

    def write_page(self, path, title, body, parts):
        page = page_of(path)
        root = os.path.relpath(".", os.path.dirname(page) or ".")
        self.write(page, PAGE % {"root": "" if root == "." else root + "/", "body": body, "menu": self.menu_html(path, parts),
                                 "title": html.escape(title if path == "README.md" else title + " - Tryst")})

    def make(self):
        shutil.rmtree(self.out, ignore_errors=True)
        for path in self.documents:
            self.write_page(path, *self.render(path))
        for path in sorted(self.shown):
            self.write_page(path, path, "<h1>%s</h1><pre><code>%s</code></pre>" % (path, html.escape(self.tree.read(path))), [])
        for path in sorted(self.copied):
            os.makedirs(os.path.dirname(os.path.join(self.out, path)), exist_ok=True)
            shutil.copy(os.path.join(self.tree.root, path), os.path.join(self.out, path))
        for name in ("site.css", "site.js"):
            shutil.copy(os.path.join(HERE, name), os.path.join(self.out, name))
        self.write("search.js", "tryst_search(%s);\n" % json.dumps(
            [[p, t, a, h, " ".join(text.split())] for p, t, a, h, text in self.entries], ensure_ascii=False, separators=(",", ":")))
        self.wrong += broken(self.out)
        return self.wrong


def broken(out):
    """What in the pages of `out` leads nowhere, or is fetched from elsewhere."""
    pages = {}
    for folder, _, names in os.walk(out):
        for name in names:
            full = os.path.join(folder, name)
            text = ""
            if name.endswith(".html"):
                with open(full, encoding="utf-8") as f:
                    text = f.read()
            pages[os.path.relpath(full, out)] = text
    ids = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in pages.items()}
    for page, text in sorted(pages.items()):
        for tag, attribute, link in re.findall(r'<(\w+)[^<>]*? (href|src)="([^"]*)"', text):
            link = html.unescape(link)
            if re.match(r"[a-z]+:|//", link):
                if tag != "a":
                    yield "%s: fetches %s, and a page needs no network" % (page, link)
                continue
            there, _, name = link.partition("#")
            to = os.path.normpath(os.path.join(os.path.dirname(page), there)) if there else page
            if to not in pages:
                yield "%s: the link %s leads nowhere" % (page, link)
            elif name and name not in ids[to]:
                yield "%s: the link %s: that page has no such heading" % (page, link)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=ROOT)
    parser.add_argument("--out")
    options = parser.parse_args()
    out = options.out or os.path.join(options.root, "out/site")
    site = Site(os.path.abspath(options.root), out)
    wrong = site.make()
    for line in wrong:
        print(line)
    print("site: %d documents, %d files shown, %d drawings, %d links that lead nowhere: %s" % (
        len(site.documents), len(site.shown), len(site.copied), len(wrong), os.path.join(out, "index.html")))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
