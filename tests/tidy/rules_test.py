#!/usr/bin/env python3
"""Each rule fires on a planted breach and on nothing else; a clean tree is clean."""
import hashlib
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../tools")]

import case_report  # noqa: E402
import rules  # noqa: E402
import tree  # noqa: E402

CLEAN = {
    "WORKSPACE": "",
    "LICENSE": "Apache License\nCopyright [yyyy] [name of copyright owner]\n",
    "README.md": "Read [on](docs/README.md).\n",
    "docs/README.md": "# Documents\n\n[How it stands](ARCHITECTURE.md)\n",
    "run": "#!/usr/bin/env bash\nexec tools/go.sh\n",
    "tools/go.sh": "#!/bin/sh\nexit 0\n",
    "docs/ARCHITECTURE.md": "# Architecture\n",
    "docs/BUILD": 'exports_files(glob(["*.md"]))\n',
    "base/BUILD": 'package(default_visibility = ["//visibility:public"])\n'
                  'cc_library(name = "clock", hdrs = ["clock.h"])\n',
    "base/clock.h": "#ifndef TRYST_BASE_CLOCK_H_\n#define TRYST_BASE_CLOCK_H_\n"
                    "// time(nullptr) in a comment, 'throw' and \"std::mutex\" are harmless.\n"
                    "constexpr int kNs = 1'000'000;\nconst char* const kText = \"class Manager {};\";\n"
                    "#endif\n",
    "rendezvous/BUILD": 'package(default_visibility = ["//visibility:private"])\n'
                        'cc_library(name = "key", srcs = ["key.cc"], deps = ["//base:clock"])\n',
    "rendezvous/key.cc": '#include "base/clock.h"\nnamespace tryst { class Key {}; }\n',
    "verbs/BUILD": 'cc_library(name = "nic", srcs = ["nic.cc"])\n',
    "verbs/nic.cc": "namespace tryst {}\n",
    "channel/BUILD": 'cc_library(name = "pool", srcs = ["pool.cc"], deps = ["//rendezvous:key"])\n',
    "channel/pool.cc": '#include <grpcpp/grpcpp.h>\n#include "rendezvous/key.h"\n',
    "server/BUILD": 'cc_binary(name = "daemon", srcs = ["main.cc"], deps = ["//channel:pool", "//verbs:nic"])\n',
    "server/main.cc": "int main() { return 0; }\n",
}


class RulesTest(unittest.TestCase):
    def breaches(self, rule, files):
        with tempfile.TemporaryDirectory() as root:
            for path, text in {**CLEAN, **files}.items():
                full = os.path.join(root, path)
                os.makedirs(os.path.dirname(full), exist_ok=True)
                with open(full, "w") as f:
                    f.write(text)
            return list(rule(tree.Tree(root)))

    def expect(self, rule, files, *pieces):
        """One breach for each of `pieces`, which are parts of its line."""
        found = self.breaches(rule, files)
        self.assertEqual(len(found), len(pieces), found)
        for line, piece in zip(found, pieces):
            self.assertIn(piece, line)

    def test_layering_of_back_ends_of_channels(self):
        self.expect(rules.layering, {
            "channel/rdma/BUILD": 'cc_library(name = "rdma", srcs = ["r.cc"], deps = ["//channel/shm"])\n',
            "channel/rdma/r.cc": '#include "channel/shm/wire.h"\n',
        }, "channel/rdma:rdma -> channel/shm:shm: back ends", "channel/shm/wire.h: back ends")

    def test_rooms(self):
        table = "| `base/` | x |\n| `rendezvous/` | x |\n| `verbs/` | x |\n| `server/` | x |\n"
        self.expect(rules.rooms, {
            "docs/ARCHITECTURE.md": table + "| `channel/`, `channel/gone/` | x |\n",
            "channel/new/BUILD": "",
        }, "there is no room channel/gone", "channel/new: the room is in no row")

    def test_for_tests_alone(self):
        self.expect(rules.for_tests_alone, {
            "server/BUILD": 'cc_binary(name = "daemon", srcs = ["main.cc"], deps = ["//channel:pool", "//verbs:nic"])\n'
                            'cc_library(name = "fake", srcs = ["fake.cc"])\n'
                            'cc_library(name = "marked", testonly = True, srcs = ["marked.cc"])\n'
                            'cc_test(name = "t", srcs = ["t.cc"], deps = [":fake", ":marked"])\n',
        }, "only tests use server:fake")

    def test_walks(self):
        walk = ("## Over x\n\nFiles to open: %d\n\n| a | b | c |\n| --- | --- | --- |\n"
                "| It goes | `channel/pool.cc` | `Pool::Fetch` |\n| on | `channel/pool.cc` | `Op` |\n")
        code = {"channel/pool.cc": "struct Op {};\nvoid Pool::Fetch() {}\n"}
        self.expect(rules.walks, {"docs/WALKS.md": walk % 1, **code})
        self.expect(rules.walks, {"docs/WALKS.md": walk % 2, **code}, "opens 1 files, and says 2")
        self.expect(rules.walks, {"docs/WALKS.md": walk % 1, "channel/pool.cc": "struct Op {};\n",
                                  "channel/path.cc": "void Pool::Fetch() {}\n"},
                    "Pool::Fetch is not in channel/pool.cc; it is in channel/path.cc")
        self.expect(rules.walks, {"docs/WALKS.md": walk % 1, "channel/pool.cc": "struct Op;\nvoid Pool::Fetch() {}\n"},
                    "Op is not in channel/pool.cc, nor anywhere")
        shared = "## All\n\n| Key | `rendezvous/key.cc` | `Key` |\n\n"
        self.expect(rules.walks, {"docs/WALKS.md": shared + walk % 2 + "\nWith [all](#all).\n", **code})
        self.expect(rules.walks, {"docs/WALKS.md": shared + walk % 2, **code}, "opens 1 files, and says 2")

    def test_glossary(self):
        row = "| %s | what it is | `channel/%s.h` |\n"
        code = {"channel/slot.h": "class AckPage; struct Slot;\n"}
        self.expect(rules.glossary, {"docs/GLOSSARY.md": row % ("Ack page", "slot") + row % ("Slot", "slot"), **code})
        self.expect(rules.glossary, {"docs/GLOSSARY.md": row % ("Slot", "slot") + row % ("Ack page", "slot"), **code},
                    "docs/GLOSSARY.md:2: Ack page stands after slot")
        self.expect(rules.glossary, {"docs/GLOSSARY.md": row % ("Slot", "lane") + row % ("Turn", "slot"), **code},
                    "docs/GLOSSARY.md:1: there is no channel/lane.h", "channel/slot.h does not speak of Turn")

    def test_given_up(self):
        way = {"channel/pool.cc": "struct PeerWay {};\nint under_way;\nint LookUp(int);\n"}
        self.expect(rules.given_up, way, "channel/pool.cc:1: PeerWay: the word is path, not way")
        self.expect(rules.given_up, {**way, rules.GIVEN_UP_NAMES: "# why\nPeerWay\n"})
        self.expect(rules.given_up, {"gpu/chunk.cc": "int chunk_bytes;\n"})
        many = "".join("Way%d\n" % i for i in range(rules.MOST_GIVEN_UP_NAMES + 1))
        self.expect(rules.given_up, {rules.GIVEN_UP_NAMES: many}, "rename instead")

    def test_comment_subjects(self):
        wrong = {"verbs/nic.cc": "int a;  // Of one NIC.\n\n// The same of two.\n// Of which nobody speaks.\nint b;\n",
                 "tools/a.py": "x = 1  # Of all.\n", "proto/a.proto": "  int32 a = 1;  // The same.\n",
                 "tools/a.sh": "a=1\n# Of b.\nb=2\n"}
        self.expect(rules.comment_subjects, wrong, "verbs/nic.cc:1: a comment is a sentence with a subject: Of one NIC.",
                    "verbs/nic.cc:3:", "proto/a.proto:1:", "tools/a.py:1:", "tools/a.sh:2:")
        kept = ("# why\nverbs/nic.cc: Of one NIC.\nverbs/nic.cc: The same of two.\ntools/a.py: Of all.\n"
                "proto/a.proto: The same.\ntools/a.sh: Of b.\n")
        self.expect(rules.comment_subjects, {**wrong, rules.WITHOUT_SUBJECT_LIST: kept})
        self.expect(rules.comment_subjects, {"verbs/nic.cc": "// Offers one.\nint a;  // One of two.\nauto b = \"// Of\";\n"})
        many = {"verbs/nic.cc": "".join("int a%d;  // Of %d.\n" % (i, i) for i in range(rules.MOST_WITHOUT_SUBJECT + 1))}
        many[rules.WITHOUT_SUBJECT_LIST] = "".join("verbs/nic.cc: Of %d.\n" % i for i in range(rules.MOST_WITHOUT_SUBJECT + 1))
        self.expect(rules.comment_subjects, many, "write a sentence instead")

    def test_drawings(self):
        source = 'digraph a {\n  b [label="channel/\\nthe Pool of NoSuch"]\n  c [label="%s"]\n}\n'
        code = {"channel/pool.cc": "class KeyPool {};\n"}
        right = source.replace("NoSuch", "KeyPool") % "gRPC"
        stamp = "<svg/><!-- %s -->\n" % hashlib.sha256(right.encode()).hexdigest()
        files = {"docs/drawings/a.dot": right, "docs/drawings/a.svg": stamp, **code}
        self.expect(rules.drawings, files)
        self.expect(rules.drawings, {**files, "docs/drawings/a.dot": right + "\n"}, "a.svg: not made of docs/drawings/a.dot")
        self.expect(rules.drawings, {"docs/drawings/a.dot": source % "cellar/", **code}, "a.dot: nobody has drawn it")
        wrong = source % "cellar/"
        stamp = "<svg/><!-- %s -->\n" % hashlib.sha256(wrong.encode()).hexdigest()
        self.expect(rules.drawings, {"docs/drawings/a.dot": wrong, "docs/drawings/a.svg": stamp, **code},
                    "a.dot:2: there is no type NoSuch", "a.dot:3: there is no room cellar/")

    def test_documents(self):
        run = {"run": "#!/usr/bin/env bash\nverb_go() { exec tools/go.sh --fast; }\n"}
        right = ("`channel/pool.cc`, `channel/`, `channel:pool`, `./run go --fast`, `kNs`, `pool.cc`, `out/x/y`\n"
                 "```\n./run go   # --comment\nbazel test --config=asan\n```\n")
        self.expect(rules.documents, {**run, "docs/A.md": right})
        self.expect(rules.documents, {**run, "CHANGELOG.md": "`channel/gone.cc`"})
        for wrong, piece in [("`channel/gone.cc`", "there is no channel/gone.cc"),
                             ("`channel:gone`", "there is no target channel:gone"),
                             ("`gone.cc`", "there is no file gone.cc"),
                             ("`./run walk`", "./run has no verb walk"),
                             ("```\n./run go --slowly\n```", "nothing takes the flag --slowly"),
                             ("`TRYST_GONE=1`", "nothing reads the variable TRYST_GONE"),
                             ("`GoneAndLost()`", "nothing in the tree is called GoneAndLost"),
                             ("`gone_bytes`", "nothing in the tree is called gone_bytes")]:
            with self.subTest(wrong):
                self.expect(rules.documents, {**run, "docs/A.md": "\n" + wrong + "\n"}, piece)

    def test_measure_of_a_transport(self):
        self.expect(rules.measure_of_a_transport, {"tests/contract/toy/toy.cc": "int a;\n" * 250})
        self.expect(rules.measure_of_a_transport, {"tests/contract/toy/toy.cc": "int a;\n" * 251}, "251 lines")

    def test_a_clean_tree_is_clean(self):
        for rule in rules.RULES:
            with self.subTest(rule.__name__):
                self.expect(rule, {})

    def test_every_rule_is_tested_here(self):
        for rule in rules.RULES:
            self.assertTrue(hasattr(self, "test_" + rule.__name__), rule.__name__)
            self.assertTrue(rule.__doc__, rule.__name__)  # tidy.py --list prints it.

    def test_layering(self):
        self.expect(rules.layering,
                    {"verbs/ibv/BUILD": 'cc_library(\n    name = "ibv",\n    deps = ["//rendezvous:tensor"],\n)\n'},
                    "verbs/ibv/BUILD:1: verbs/ibv:ibv -> rendezvous:tensor: verbs may use base")
        self.expect(rules.layering, {"verbs/nic.cc": '\n#include "rendezvous/key.h"\n'},
                    "verbs/nic.cc:2: verbs/nic.cc -> rendezvous/key.h")

    def test_layering_sees_selects_and_data(self):
        self.expect(rules.layering,
                    {"gpu/BUILD": 'cc_library(name = "a", deps = if_cuda(["//verbs:nic"], []))\n'
                                  'cc_test(name = "b", data = [":x"] + select({"//tools:t": ["//server:s"]}))\n'},
                    "gpu:a -> verbs:nic", "gpu:b -> server:s")
        self.expect(rules.layering,
                    {"gpu/BUILD": '[cc_test(name = n, deps = [":a"] + d) for n, d in [("c", ["//server:s"])]]\n'},
                    "gpu:c -> server:s")

    def test_layering_keeps_the_trunk_from_the_root_and_all_from_tests(self):
        self.expect(rules.layering,
                    {"channel/BUILD": 'cc_library(name = "c", deps = ["//server"])\n',
                     "base/BUILD": 'cc_library(name = "d", deps = ["//tests/contract:nic"])\n'},
                    "base:d -> tests/contract:nic: base may use nothing", "channel:c -> server:server")

    def test_layering_keeps_back_ends_apart(self):
        self.expect(rules.layering,
                    {"verbs/soft/BUILD": 'cc_library(name = "soft", deps = ["//verbs:nic", "//verbs/ofi:trace"])\n'},
                    "verbs/soft:soft -> verbs/ofi:trace: back ends")

    def test_layering_lets_tests_use_doubles(self):
        self.expect(rules.layering,
                    {"gpu/BUILD": 'cc_library(name = "gpu", deps = ["//tests/doubles/cuda:fake_cuda"])\n'
                                  'cc_test(name = "t", deps = ["//tests/doubles/cuda:fake_cuda", "//tests/sim:load"])\n',
                     "gpu/a_test.cc": '#include "tests/doubles/cuda/fake_cuda.h"\n',
                     "gpu/a.cc": '#include "tests/doubles/cuda/fake_cuda.h"\n'},
                    "gpu:gpu -> tests/doubles/cuda:fake_cuda: gpu may use", "gpu:t -> tests/sim:load: gpu may use",
                    "gpu/a.cc:1: gpu/a.cc -> tests/doubles/cuda/fake_cuda.h")

    def test_foreign_headers(self):
        self.expect(rules.foreign_headers,
                    {"verbs/nic.cc": "#include <infiniband/verbs.h>\n",
                     "verbs/ibv/a.cc": "#include <infiniband/verbs.h>\n",
                     "verbs/ofi/a.cc": "#include <rdma/fi_rma.h>\n",
                     "verbs/soft/a.cc": "#include <rdma/fabric.h>\n",
                     "channel/cuda_ipc/a.cc": "#include <cuda_runtime.h>\n",
                     "rendezvous/key.cc": "#include <grpcpp/grpcpp.h>\n"},
                    "channel/cuda_ipc/a.cc:1: includes cuda_runtime.h, which only gpu may",
                    "rendezvous/key.cc:1: includes grpcpp/grpcpp.h",
                    "verbs/nic.cc:1: includes infiniband/verbs.h, which only verbs/ibv may",
                    "verbs/soft/a.cc:1: includes rdma/fabric.h, which only verbs/ofi may")

    def test_folders(self):
        self.expect(rules.folders, {"lib/a.cc": ""}, "lib: no such room")

    def test_visibility(self):
        self.expect(rules.visibility,
                    {"verbs/BUILD": 'package(default_visibility = [\n    "//visibility:public",\n])\n'},
                    "verbs/BUILD:1: packages are private")

    def test_names(self):
        self.expect(rules.names,
                    {"rendezvous/string_util.cc": "", "channel/common/a.cc": ""},
                    "channel/common/a.cc: the name common", "rendezvous/string_util.cc: the name string_util.cc")
        self.expect(rules.names, {"verbs/BUILD": 'cc_library(name = "nic_helpers")\n'}, "the target verbs:nic_helpers")

    def test_names_of_types_and_macros(self):
        for code, name in [("class ABSL_LOCKABLE StepMgr {};", "StepMgr"),
                           ("enum class PeerInfo : int {};", "PeerInfo"),
                           ("namespace tryst::internal {}", "tryst::internal"),
                           ("using Misc = int;", "Misc"),
                           ("#define TRYST_UTIL(x) x", "TRYST_UTIL"),
                           ("struct [[nodiscard]] RDMAManager;", "RDMAManager")]:
            with self.subTest(code):
                self.expect(rules.names, {"verbs/nic.cc": "\n" + code + "\n"}, "verbs/nic.cc:2: the name " + name)
        self.expect(rules.names, {"proto/a.proto": "message StepInfo {}\n"}, "the name StepInfo")

    def test_names_of_others_are_theirs(self):
        self.expect(rules.names, {"verbs/nic.cc": "using ::testing::internal::CaptureStderr;\nsiginfo_t i; "
                                                  "addrinfo a; auto x = grpc::internal::y; enum { kInfo };\n"})

    def test_dead_files(self):
        self.expect(rules.dead_files,
                    {"verbs/old.cc": "", "tests/hardware/guest/stray.sh": "", "tests/contract/golden/a.bin": "",
                     "tests/contract/golden/BUILD": 'filegroup(name = "g", srcs = glob(["*.golden"]))\n',
                     "tests/contract/golden/b.golden": "", "tools/extra.sh": "", "tools/go.sh": ". extra.sh\n"},
                    "tests/contract/golden/a.bin: dead", "tests/hardware/guest/stray.sh: dead", "verbs/old.cc: dead")

    def test_dead_files_sees_loops(self):
        self.expect(rules.dead_files,
                    {"verbs/a_test.cc": "", "verbs/b_test.cc": "", "verbs/c_test.cc": "",
                     "verbs/BUILD": 'cc_library(name = "nic", srcs = ["nic.cc"])\n'
                                    '[cc_test(name = t, srcs = [t + ".cc"]) for t in ["a_test"]]\n'
                                    '[cc_test(name = n, srcs = ["%s.cc" % n], deps = d)'
                                    ' for n, d in [("b_test", [":nic"])]]\n'},
                    "verbs/c_test.cc: dead")

    def test_dead_files_sees_what_goes_without_saying(self):
        files = {"verbs/%s" % name: "" for name in (
            "nic.h", "ring.cc", "ring.h", "left.h", "see_main.cc", "see.cc", "a_test.cc", "b_test.cc", "b_help.h", "run_test.sh", "x_fuzz.cc",
            "corpus/x/one", "corpus/y/two")}
        self.expect(rules.dead_files, {
            **files, "verbs/BUILD": 'cc_library(name = "nic")\ncc_library(name = "all", parts = ["ring"])\ncc_binary(name = "see")\n'
                                    '[cc_test(name = t) for t in ["a_test"]]\ncc_test(name = "b_test", parts = ["b_test", "b_help"])\n'
                                    'sh_test(name = "run_test")\ncc_fuzz_test(name = "x_fuzz")\n'},
            "verbs/corpus/y/two: dead", "verbs/left.h: dead", "verbs/see.cc: dead")

    def test_what_only_tests_are_built_from(self):
        with tempfile.TemporaryDirectory() as root:
            for path, text in {"tests/BUILD": 'cc_library(name = "a")\ncc_library(name = "b", testonly = False)\n', "tests/a.cc": "",
                               "tests/b.cc": "", "verbs/BUILD": 'cc_library(name = "c")\n', "verbs/c.cc": ""}.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w") as f:
                    f.write(text)
            self.assertEqual(tree.Tree(root).test_files(), {"tests/a.cc"})

    def test_guards(self):
        self.expect(rules.guards, {"verbs/ibv/a.h": "#pragma once\n"}, "is TRYST_VERBS_IBV_A_H_")
        self.expect(rules.guards, {"verbs/a.h": "#ifndef VERBS_A_H_\n#define VERBS_A_H_\n#endif\n"}, "TRYST_VERBS_A_H_")

    def test_forbidden_code(self):
        for code, piece in [("absl::MutexLock lock(&mu);", "absl::MutexLock"),
                            ("std::lock_guard<std::mutex> lock(mu);", "std::lock_guard"),
                            ("void F(std::string_view s);", "std::string_view"),
                            ("absl::Notification done;", "absl::Notification"),
                            ("throw 1;", "throw"),
                            ("assert(n > 0);", "assert("),
                            ("thread.detach();", ".detach()"),
                            ("auto t = std::chrono::steady_clock::now();", "steady_clock::now"),
                            ("auto t = time(nullptr);", "time(nullptr)"),
                            ("#ifdef TRYST_CUDA\n#endif", "#ifdef TRYST_CUDA")]:
            with self.subTest(code):
                found = self.breaches(rules.forbidden_code, {"verbs/nic.cc": "\n" + code + "\n"})
                self.assertTrue(found)
                self.assertIn("verbs/nic.cc:2: " + piece, found[0])

    def test_forbidden_code_has_its_places(self):
        self.expect(rules.forbidden_code,
                    {"plugins/tensorflow/kernels.cc": "std::mutex mu;\n",
                     "verbs/soft/BUILD": 'cc_test(name = "a_test", srcs = ["a_test.cc"])\n'
                                         'cc_library(name = "world", testonly = True, srcs = ["world.cc"])\n',
                     "gpu/driver.h": "#ifndef TRYST_GPU_DRIVER_H_\n#define TRYST_GPU_DRIVER_H_\n#endif\n",
                     "verbs/soft/a_test.cc": "auto t = time(nullptr);\n", "verbs/soft/world.cc": "throw 1;\n",
                     "server/a_test.cc": "absl::Notification done;\n",
                     "verbs/nic.cc": "if (p == nullptr) throw std::bad_alloc();\nstatic_assert(true);\n"})

    def test_machine_paths(self):
        self.expect(rules.machine_paths,
                    {"README.md": "see /home/ann/notes and /usr/share/doc, docs/work/x and /tmp/x\n"}, "README.md:1")

    def test_todos(self):
        self.expect(rules.todos, {"verbs/nic.cc": "// TODO: later\n// TODO(ann): later\n// FIXME\n"},
                    "verbs/nic.cc:1", "verbs/nic.cc:3")

    def test_licence(self):
        self.expect(rules.licence, {"LICENSE": "MIT", "verbs/nic.cc": "// Copyright 2016 Some Authors\n"},
                    "LICENSE: must be", "verbs/nic.cc:1")

    def test_links(self):
        self.expect(rules.links, {"docs/ARCHITECTURE.md": "# X\n[a](ARCHITECTURE.md#x) [b](../run) [c](https://x.org) "
                                                          "[d](GONE.md) [e](decisions) [f](decisions/0001-a.md)\n",
                                  "docs/decisions/0001-a.md": ""},
                    "docs/ARCHITECTURE.md:2: the link GONE.md leads nowhere")
        self.expect(rules.links, {"docs/OLD.md": ""}, "docs/OLD.md: no other document links to it")
        self.expect(rules.links, {"verbs/nic.cc": "// See docs/WIRE.md and docs/ARCHITECTURE.md.\n"},
                    "verbs/nic.cc:1: speaks of docs/WIRE.md")

    def test_links_lead_to_headings(self):
        heads = "# A `b_c`: d, e\n\n## Same\n\n## Same\n\n```\n# no heading\n[x](GONE.md)\n```\n"
        self.expect(rules.links, {"docs/ARCHITECTURE.md": heads + "[a](#a-b_c-d-e) [b](#same) [c](#same-1)\n",
                                  "README.md": "[a](docs/README.md) [b](docs/ARCHITECTURE.md#same)\n"})
        self.expect(rules.links, {"docs/ARCHITECTURE.md": heads + "[a](#no-heading) [b](#same-2)\n",
                                  "README.md": "[a](docs/README.md) [b](docs/ARCHITECTURE.md#other)\n"},
                    "README.md:1: the link docs/ARCHITECTURE.md#other: docs/ARCHITECTURE.md has no such heading",
                    "docs/ARCHITECTURE.md:11: the link #no-heading", "the link #same-2")

    def test_index(self):
        more = {"docs/a/B.md": "[c](../C.md)\n", "docs/C.md": "", "docs/README.md": "[a](ARCHITECTURE.md) [b](a/B.md)\n"}
        self.expect(rules.index, more, "docs/C.md: docs/README.md does not lead to it")
        self.expect(rules.index, {**more, "docs/README.md": "[a](ARCHITECTURE.md) [b](a/README.md)\n",
                                  "docs/a/README.md": "[b](B.md) [c](../C.md)\n"})
        with tempfile.TemporaryDirectory() as root:
            self.assertEqual(list(rules.index(tree.Tree(root))), ["docs/README.md: the index of the documents is missing"])

    def test_said_twice(self):
        long = "A worker that restarts has another\nincarnation, so what is received needs another plan"
        self.expect(rules.said_twice, {"docs/ARCHITECTURE.md": "# A\n\n%s. More.\n" % long, "README.md": "| x | %s |\n" % long},
                    "docs/ARCHITECTURE.md:3: README.md:1 says it already: A worker that restarts")
        self.expect(rules.said_twice, {"docs/decisions/0001-a.md": long, "docs/ARCHITECTURE.md": long,
                                       "README.md": "```\n%s\n```\n" % long})
        self.expect(rules.said_twice, {"docs/ARCHITECTURE.md": "It ends here. It ends here.\n"})

    def test_decisions(self):
        whole = "## Context\n## Choice\n## Rejected\n## Consequence\n"
        self.expect(rules.decisions, {"docs/decisions/0001-a.md": whole, "docs/decisions/0001-b.md": whole,
                                      "docs/decisions/0002-c.md": "## Context\n## Choice\n## Consequence\n",
                                      "docs/decisions/notes.md": ""},
                    "docs/decisions/0001-b.md: has the number of docs/decisions/0001-a.md",
                    "0002-c.md: has no part called Rejected", "notes.md: a decision is called")
        index = "| [0001](0001-a.md) A | yes |\n"
        self.expect(rules.decisions, {"docs/decisions/README.md": index, "docs/decisions/0001-a.md": whole})
        self.expect(rules.decisions, {"docs/decisions/README.md": index, "docs/decisions/0001-a.md": whole,
                                      "docs/decisions/0002-b.md": whole}, "0002-b.md: is not in docs/decisions/README.md")

    def test_decisions_are_short_superseded_and_without_holes(self):
        whole = "# a\n## Context\n## Choice\n## Rejected\n## Consequence\n"
        index = "| [0001](0001-a.md) a | %s |\n| [0003](0003-c.md) c | yes |\n\nNumbers without a record: %s.\n"
        def tree_with(holds, holes, record=whole):
            return {"docs/decisions/README.md": index % (holds, holes), "docs/decisions/0001-a.md": record,
                    "docs/decisions/0003-c.md": whole}
        self.expect(rules.decisions, tree_with("yes", "0002"))
        self.expect(rules.decisions, tree_with("yes", "0002 and 0004"))
        self.expect(rules.decisions, tree_with("yes", "0001"), "the number 0001", "the number 0002")
        self.expect(rules.decisions, tree_with("yes", "0002", whole + "\n" * 60), "0001-a.md: 65 lines")
        self.expect(rules.decisions, tree_with("yes", "0002", whole + "Superseded by [0003](0003-c.md).\n"),
                    "0001-a.md: superseded by 0003")
        self.expect(rules.decisions, tree_with("no: [0003](0003-c.md)", "0002"), "0001-a.md: superseded by none")
        self.expect(rules.decisions, tree_with("no: [0003](0003-c.md)", "0002", "Superseded by [0003](0003-c.md).\n"))

    def test_doc_tables(self):
        doc = "<!-- table: //verbs:print -->\n<!-- end table -->\n"
        self.expect(rules.doc_tables, {"docs/ERRORS.md": doc}, "docs/ERRORS.md:1: no doc_table_test")
        self.expect(rules.doc_tables, {
            "docs/ERRORS.md": doc,
            "verbs/BUILD": 'doc_table_test(name = "t", doc = "//docs:ERRORS.md", program = ":print")\n'})

    def test_quoted_messages(self):
        self.expect(rules.quoted_messages, {
            "docs/TROUBLESHOOTING.md": "> cannot reach ... : why\n\n> gone ... elsewhere\n",
            "server/a.cc": 'Say("cannot "\n    "reach ", x, ": why");\n', "server/a_test.cc": '"elsewhere"'},
                    "docs/TROUBLESHOOTING.md:3: no source says 'gone'",
                    "docs/TROUBLESHOOTING.md:3: no source says 'elsewhere'")

    def test_script_syntax(self):
        self.expect(rules.script_syntax, {"tools/go.sh": "if true; then\n", "tools/a.py": "def f(:\n", "run": CLEAN["run"]},
                    "tools/a.py:1:", "tools/go.sh: ")


if __name__ == "__main__":
    case_report.main()
