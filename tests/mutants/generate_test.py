#!/usr/bin/env python3
"""generate.py: which faults it makes of which code, and that they are the same again where lines have moved."""
import os
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(ROOT, "tools")]

import case_report  # noqa: E402
import cpp_source  # noqa: E402
import generate  # noqa: E402
import planting  # noqa: E402
import sample  # noqa: E402

# Compiles alone, and uses what makes a lexer stumble.
SOURCE = r"""
#include <functional>
#include <map>
#include <string>
#include <vector>
namespace a {
namespace {
constexpr int kMost = 8;
constexpr long kWaitNs = 5000000;
struct Row { int from; int to; };
constexpr Row kRows[] = {{1, 2}, {3, 4}};
constexpr int Twice(int n) { return n < 4 ? n * 2 : n + 1; }
}  // namespace

class Box {
 public:
  Box(int most, std::string name) : most_{most}, name_(std::move(name)) { Push(1); }
  ~Box() { left_.clear(); }
  bool Full() const { return left_.size() >= static_cast<size_t>(most_); }
  int Sum(const std::map<int, std::vector<int>>& of) const;
  void Push(int n);
  std::string ToText() const { return left_.empty() ? "<" : ">"; }

 private:
  const int most_;
  const std::string name_;
  std::vector<int> left_;
};

void Box::Push(int n) {
  if (Full() || n == 0) return;
  left_.push_back(n);
  left_.back() += 1;
  const char quote = '"';  // A "quote" here; and { there.
  if (quote != '"' && n > kMost) left_.clear();
}

int Box::Sum(const std::map<int, std::vector<int>>& of) const {
  int sum = 0;
  for (size_t i = 0; i < left_.size(); ++i) {
    switch (left_[i]) {
      case kMost:
        break;
      default:
        sum += left_[i];
    }
  }
  const std::function<void(int)> add = [&sum](int n) {
    if (n < 0) return;
    sum += n;
  };
  for (const auto& [key, values] : of) {
    if (key <= 2) continue;
    for (int value : values) add(value);
  }
  while (sum > 1000) sum /= 2;
  return sum == 7 ? Twice(sum) : sum;
}

template <typename T>
T* Find(T* begin, T* end, const T& what) {
  T* at = begin;
  do {
    if (*at == what) return at;
  } while (++at < end);
  return nullptr;
}
}  // namespace a
int main() {
  a::Box box(3, "box");
  box.Push(4);
  int numbers[] = {1, 2, 3};
  return box.Sum({{3, {1, 2}}}) == 10 && a::Find(numbers, numbers + 3, 2) == numbers + 1 && box.ToText() == ">" ? 0 : 1;
}
"""


def rules(text, function=None):
    return {(fault.rule, fault.text) for fault in generate.faults_of("a.cc", text) if function in (None, fault.function)}


def body(text):
    return rules("void F() {\n%s\n}\n" % text)


class GenerateTest(unittest.TestCase):
    def test_each_rule_has_its_faults(self):
        made = rules(SOURCE)
        for rule, text in (
                ("turned", "left_ . size ( ) >= static_cast < size_t > ( most_ )"), ("bound", "n > kMost"),
                ("always", "if ( Full ( ) || n == 0 )"), ("never", "while ( sum > 1000 )"), ("never", "for ( i < left_ . size ( ) )"),
                ("part", "n == 0 in Full ( ) || n == 0"), ("left out", "left_ . push_back ( n ) ;"), ("left out", "continue ;"),
                ("exchanged", "left_ . push_back ( n ) ; left_ . back ( ) += 1 ;"), ("early", "void Box::Push()"),
                ("nothing", "return sum == 7 ? Twice ( sum ) : sum ;"), ("always", "sum == 7 ?"), ("left out", "sum += n ;")):
            self.assertIn((rule, text), made)
        self.assertEqual({rule for rule, _ in made},
                         {"turned", "bound", "always", "never", "part", "scaled", "left out", "exchanged", "early", "nothing"})

    def test_what_needs_constants_or_only_words_is_left_alone(self):
        texts = {text for _, text in rules(SOURCE)}
        self.assertFalse([text for text in texts if "case" in text.split()])
        self.assertEqual(rules(SOURCE, "Twice"), set())
        self.assertEqual(rules(SOURCE, "Box::ToText"), set())
        self.assertEqual(body("TRYST_CHECK(a < b);"), {("early", "void F()")})
        self.assertFalse([text for rule, text in body('Say(absl::StrCat("of ", n + 1));') if rule == "bound"])

    def test_a_class_of_a_header_is_not_taken_for_a_function(self):
        made = generate.faults_of("a.h", """
            class ABSL_SCOPED_LOCKABLE Held final {
             public:
              explicit Held(Lock* lock) ABSL_EXCLUSIVE_LOCK_FUNCTION(lock) : lock_(lock) { lock_->Take(); }
              virtual ~Held() { lock_->Give(); }
              operator bool() const { Look(); return lock_->taken(); }
              Lock& lock() { Look(); return *lock_; }
              absl::StatusOr<std::vector<int>> All() { Look(); return lock_->all(); }
             private:
              Lock* lock_;
            };
            struct alignas(64) Cell {
              int number = 7;
              bool Is(int other) const { return number == other + 1; }
            };""")
        self.assertEqual({(fault.function, fault.rule) for fault in made if fault.rule in ("early", "left out", "nothing", "turned")}, {
            ("Held::Held", "early"), ("Held::Held", "left out"), ("Held::virtual~Held", "early"), ("Held::virtual~Held", "left out"),
            ("Held::operatorbool", "early"), ("Held::operatorbool", "left out"), ("Held::operatorbool", "nothing"),
            ("Held::lock", "left out"), ("Held::All", "left out"), ("Cell::Is", "nothing"), ("Cell::Is", "turned")})
        early = {fault.function: fault.edits[0].before for fault in made if fault.rule == "early"}
        self.assertEqual(early["Held::virtual~Held"], "if (MUTANT) return; ")
        self.assertEqual(early["Held::operatorbool"], "if (MUTANT) return {}; ")

    def test_what_is_constexpr_is_counted_and_left_alone(self):
        self.assertEqual(cpp_source.Source(SOURCE).constant_functions, 1)
        text = "struct A {\n  constexpr A(int n) : n_(n) { Check(n < 3); }\n  static constexpr bool Is() { return 1 < 2; }\n  int n_;\n};\n"
        self.assertEqual((rules(text), cpp_source.Source(text).constant_functions), (set(), 2))
        with tempfile.TemporaryDirectory() as root:
            for name, words in (("a.h", text), ("a.cc", SOURCE)):
                with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                    file.write(words)
            self.assertEqual(sample.constant_functions(root, ["a.h", "a.cc"]), 3)

    def test_headers_have_faults_but_those_of_tests(self):
        paths = set(sample.sources(ROOT, generate.ROOMS))
        self.assertLessEqual({"base/mutex.h", "channel/ops/fetch_ops.h", "channel/ops/fetch_ops.cc", "rendezvous/tensor.h"}, paths)
        self.assertFalse(paths & {"base/turned_clock.h", "rendezvous/testing.h", "base/mutex_test.cc"})

    def test_brackets_of_templates_are_no_comparisons(self):
        self.assertFalse([one for one in body("std::map<int, std::vector<int>> m;\nUse(std::make_pair<int, int>(1, 2));")
                          if one[0] in ("turned", "bound")])
        self.assertIn(("turned", "f < int , A > ( x ) < y"), body("if (f<int, A>(x) < y) Go();"))

    def test_a_declaration_is_not_left_out(self):
        self.assertEqual({one for one in body("std::unique_ptr<T<int>> t = Make();\nFoo* f = Get();\nconst auto& [a, b] = Two();\nBar c(1);\n"
                                              "absl::Status s;\nstd::vector<int>::iterator i;")}, {("early", "void F()")})
        self.assertEqual({text for rule, text in body("a->b = c;\n*d = 1;\n++e;\ng<int>(2);\nstd::move(h)();") if rule == "left out"},
                         {"a -> b = c ;", "* d = 1 ;", "++ e ;", "g < int > ( 2 ) ;", "std :: move ( h ) ( ) ;"})

    def test_what_may_come_in_any_order_is_not_exchanged(self):
        exchanged = lambda text: [text for rule, text in body(text) if rule == "exchanged"]  # noqa: E731
        self.assertEqual(exchanged("a_ = 1;\nb_ = std::move(c);"), [])
        self.assertEqual(exchanged("StoreLittle<uint32_t>(out, kMagic);\nStoreLittle(out + 4, x);"), [])
        self.assertEqual(exchanged("header->a = in[5] != 0;\nheader->b = LoadLittle<uint32_t>(in + 8);"), [])
        self.assertEqual(exchanged("free_.pop_back();\n++count_;"), [])
        self.assertEqual(exchanged("entry->key = TensorKey();\nfree_.push_back(entry);"), [])
        self.assertEqual(len(exchanged("bound.length = 1;\nout.push_back(bound);")), 1)
        self.assertEqual(len(exchanged("kept_.push_back(Next());\n++count_;")), 1)
        self.assertEqual(len(exchanged("old_[at_] = key;\nat_ = (at_ + 1) % kMost;")), 1)
        self.assertEqual(len(exchanged("a_ = 1;\nGo();")), 1)
        self.assertEqual(len(exchanged("ready_.store(true);\na_ = 1;")), 1)

    def test_a_branch_that_only_tells_is_left_alone(self):
        def rules(text):
            return {rule for rule, _ in body(text)} - {"early"}
        self.assertEqual(rules("if (late) TRYST_LOG(Info) << 1;"), set())
        self.assertEqual(rules("if (late && !told) {\n  TRYST_REACHED(\"rare: late\");\n}"), set())
        self.assertIn("never", rules("if (late) {\n  TRYST_REACHED(\"rare: late\");\n  return;\n}"))
        self.assertIn("never", rules("if (late) TRYST_LOG(Info) << 1; else Go();"))

    def test_operands_end_where_they_do(self):
        self.assertEqual({text for rule, text in body("b = x.y(1, 2)[i] + 4 == *p && !q;") if rule == "turned"},
                         {"x . y ( 1 , 2 ) [ i ] + 4 == * p"})
        self.assertEqual({text.split(" in ")[0] for rule, text in body("if (a && b == c && d) Go();") if rule == "part"},
                         {"a", "b == c", "d"})

    def test_a_lambda_has_its_own_statements(self):
        made = [fault for fault in generate.faults_of("a.cc", "void F() { Run([this](int n) { Stop(n); Go(); }); }") if fault.rule == "left out"]
        self.assertEqual([(fault.function, fault.text) for fault in made],
                         [("F", "Run ( [ this ] ( int n ) { Stop ( n ) ; Go ( ) ; } ) ;"), ("F::lambda", "Stop ( n ) ;"), ("F::lambda", "Go ( ) ;")])

    def test_all_of_them_compile_and_lie_dormant(self):
        faults = [generate.numbered(fault, 1 + i) for i, fault in enumerate(generate.faults_of("a.cc", SOURCE))]
        self.assertGreater(len(faults), 60)
        edits = [edit for fault in faults for edit in fault.edits]
        self.assertFalse([(one, other) for one in edits for other in edits if planting.crosses(one, other)])
        with tempfile.TemporaryDirectory() as folder:
            while True:
                planted, refused = planting.plant(SOURCE, [], faults)
                self.assertEqual(refused, {})
                path = os.path.join(folder, "a.cc")
                with open(path, "w", encoding="utf-8") as file:
                    file.write(planted)
                compiler = subprocess.run(["g++", "-std=c++17", "a.cc", "-o", "a"], cwd=folder, stderr=subprocess.PIPE)
                if compiler.returncode == 0:
                    break
                bad = sample.blamed(compiler.stderr.decode(), folder)
                self.assertTrue(bad, compiler.stderr.decode())
                faults = [fault for fault in faults if not any("(%d)" % number in edit.before + edit.after
                                                               for number in bad for edit in fault.edits)]
            self.assertGreater(len(faults), 60)
            run = lambda awake: subprocess.run([os.path.join(folder, "a")], env={"TRYST_MUTANT": str(awake)}, timeout=10).returncode  # noqa: E731
            self.assertEqual(run(0), 0)
            awake = {fault.text: run(1 + i) for i, fault in enumerate(generate.faults_of("a.cc", SOURCE))
                     if fault.name in {one.name for one in faults} and fault.rule == "left out"}
            self.assertEqual(awake["left_ . push_back ( n ) ;"] != 0, True)

    def test_a_fault_is_known_again_where_lines_have_moved(self):
        names = {fault.name for fault in generate.faults_of("a.cc", SOURCE)}
        moved = SOURCE.replace("void Box::Push", "// One more line.\n\nvoid  Box::Push")
        self.assertEqual({fault.name for fault in generate.faults_of("a.cc", moved)}, names)
        alike = [fault.name for fault in generate.faults_of("a.cc", "void F() { G(); G(); }") if fault.rule == "left out"]
        self.assertEqual(len(set(alike)), 2)

    def test_a_seed_draws_and_a_smaller_sample_is_its_begin(self):
        faults = generate.faults_of("a.cc", SOURCE)
        order = [fault.name for fault in generate.drawn(faults, "1")]
        self.assertEqual(order, [fault.name for fault in generate.drawn(list(reversed(faults)), "1")])
        self.assertNotEqual(order, [fault.name for fault in generate.drawn(faults, "2")])
        self.assertEqual(sorted(order), sorted(fault.name for fault in faults))

    def test_what_the_compiler_refuses_is_blamed_by_its_line(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "a.cc"), "w", encoding="utf-8") as file:
                file.write("\nf(TrystMutant(7) ? 1 : 2,\n  3);\n\n\ng(TrystMutant(9));\n")
            self.assertEqual(sample.blamed("a.cc:3:2: error: no\na.cc:1:1: warning: no\n", folder), {7})
            self.assertEqual(sample.blamed("./a.cc:6:1: error: no\nelsewhere.cc:6:1: error: no\n", folder), {9})

    def test_a_file_that_loses_its_only_fault_is_built_without(self):
        with tempfile.TemporaryDirectory() as root, tempfile.TemporaryDirectory() as tree:
            with open(os.path.join(root, "a.cc"), "w", encoding="utf-8") as file:
                file.write("void F() {\n  Go();\n}\n")
            drawn = dict(list(sample.draw(root, ["a.cc"], "1", 1, set()).items())[:1])

            def compile_all(planted):
                with open(os.path.join(tree, "a.cc"), encoding="utf-8") as file:
                    lines = file.read().split("\n")
                return "".join("a.cc:%d:1: error: no\n" % (1 + i) for i, line in enumerate(lines) if "TrystMutant(10000)" in line)
            self.assertEqual(sample.build(root, tree, [], drawn, 1, compile_all, os.path.join(root, "refused"))[0], {})

    def test_a_described_fault_that_does_not_compile_is_named_and_left_out(self):
        def compile_all(planted):
            with open(os.path.join(tree, "a.cc"), encoding="utf-8") as file:
                lines = file.read().split("\n")
            return "".join("a.cc:%d:1: error: no\n" % (1 + i) for i, line in enumerate(lines) if "TrystMutant(2)" in line)
        with tempfile.TemporaryDirectory() as root, tempfile.TemporaryDirectory() as tree:
            with open(os.path.join(root, "a.cc"), "w", encoding="utf-8") as file:
                file.write("void F() {\n  Go();\n  Stop();\n}\n")
            described = [planting.Mutant(1 + i, "name_%d" % i, "a.cc", [["//a"]], "", text, "") for i, text in enumerate(["Go();", "Stop();"])]
            built = sample.build(root, tree, described, {}, 0, compile_all, os.path.join(root, "refused"))
            self.assertEqual(built, ({}, {"name_1": "it does not compile"}))
            self.assertEqual([mutant.name for mutant in described], ["name_0", "name_1"])  # The caller's own.
            with open(os.path.join(tree, "a.cc"), encoding="utf-8") as file:
                self.assertIn("TrystMutant(1)", file.read())

    def test_each_instance_of_a_contract_is_a_test(self):
        listing = "Alone.\n  Test\nShm/Contract.\n  A/Small  # GetParam() = Small\n  A/Large  # GetParam() = Large\n  B/Small  # GetParam() = Small\n"
        contract = "//tests/contract:channel_contract_shm_test"
        tests = sample.tests_of({contract: "c", planting.SIM: "s", "//a:b_test": "b"}, {"c": listing}.get)
        filters = [test[1:] for test in tests if test[0] == contract]
        self.assertEqual(filters, [["--gtest_filter=*/Large"], ["--gtest_filter=*/Small"], ["--gtest_filter=-*/*"]])
        self.assertEqual(sum(test[0] == planting.SIM for test in tests), 4)
        self.assertEqual([test for test in tests if not sample.is_thorough(test)], [["//a:b_test"]])

    def test_each_case_of_a_long_test_is_a_test(self):
        listing = "Running main() from gtest_main.cc\nAlone.\n  One\n  Two\nSeeds/Many.  # TypeParam = int\n  A/0  # GetParam() = 0\n"
        self.assertEqual(sample.tests_of({sample.LONG: "l"}, {"l": listing}.get),
                         [[sample.LONG, "--gtest_filter=" + name] for name in ("Alone.One", "Alone.Two", "Seeds/Many.A/0")])

    def test_every_source_of_the_rooms_can_be_read(self):
        for path in sample.sources(ROOT, generate.ROOMS):
            with open(os.path.join(ROOT, path), encoding="utf-8") as file:
                cpp_source.Source(file.read())

    def test_equivalents_have_all_that_a_reader_needs(self):
        block = "g1\nin a.cc\nfunction F\nrule turned\ntext a < b\nwhy it does not matter\n"
        self.assertEqual(generate.blocks_of("# Words.\n\n" + block)["g1"]["why"], "it does not matter")
        with self.assertRaises(cpp_source.Unreadable):
            generate.blocks_of(block.replace("why", "because"))
        for name in ("equivalents.txt", "survivors.txt"):
            sample.listed(HERE, name)


if __name__ == "__main__":
    case_report.main()
