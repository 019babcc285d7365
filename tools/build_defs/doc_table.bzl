"""doc_table_test: a table in a document equals what a program prints."""

def doc_table_test(name, doc, program, **kwargs):
    """Compares each table of `doc` that names `program`; `./run docs` rewrites them.

    In the document, with arguments for the program if it takes any:

        <!-- table: //verbs/ibv:print_statuses --markdown -->
        (what the program prints)
        <!-- end table -->

    Args:
      doc: for example "//docs:ERRORS.md".
      program: a binary of this or another package.
    """
    label = "//" + native.package_name() + program if program.startswith(":") else program
    native.sh_test(
        name = name,
        size = "small",
        srcs = ["//tools:doc_table.py"],
        args = ["check", "$(location %s)" % doc, label, "$(location %s)" % program],
        data = [doc, program],
        **kwargs
    )
