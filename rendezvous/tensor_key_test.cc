#include "rendezvous/tensor_key.h"

#include <gtest/gtest.h>

#include <string>
#include <unordered_map>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

constexpr char kText[] =
    "/job:mnist/replica:1/task:2/device:CPU:0;0000000000001ed2;"
    "/job:mnist/replica:1/task:2/device:GPU:0;edge_1;7:3";

std::string With(const std::string& part, const std::string& by) {
  std::string text = kText;
  text.replace(text.find(part), part.size(), by);
  return text;
}

TEST(TensorKey, TakesAKeyApart) {
  absl::StatusOr<TensorKey> key = TensorKey::Parse(kText);
  ASSERT_TRUE(key.ok()) << key.status();
  EXPECT_EQ(key->text(), kText);
  EXPECT_EQ(key->src_device(), "/job:mnist/replica:1/task:2/device:CPU:0");
  EXPECT_EQ(key->src_incarnation(), 7890u);
  EXPECT_EQ(key->dst_device(), "/job:mnist/replica:1/task:2/device:GPU:0");
  EXPECT_EQ(key->edge(), "edge_1");
  EXPECT_EQ(key->frame(), 7u);
  EXPECT_EQ(key->iter(), 3u);
  EXPECT_EQ(key->src().worker, "/job:mnist/replica:1/task:2");
  EXPECT_EQ(key->src().job, "mnist");
  EXPECT_EQ(key->src().replica, 1);
  EXPECT_EQ(key->src().task, 2);
  EXPECT_EQ(key->dst().type, "GPU");
  EXPECT_EQ(key->dst().index, 0);
}

TEST(TensorKey, ViewsOutliveTheTextTheyWereParsedFrom) {
  auto text = std::make_unique<std::string>(kText);
  TensorKey copy;
  {
    const TensorKey key = *TensorKey::Parse(*text);
    copy = key;
  }
  text.reset();
  EXPECT_EQ(copy.text(), kText);
  EXPECT_EQ(copy.src().job, "mnist");
}

TEST(TensorKey, AnEmptySourceIsAllowed) {
  absl::StatusOr<TensorKey> key =
      TensorKey::Parse(With("/job:mnist/replica:1/task:2/device:CPU:0;", ";"));
  ASSERT_TRUE(key.ok()) << key.status();
  EXPECT_TRUE(key->src_device().empty());
}

TEST(TensorKey, RefusesEverythingElse) {
  const std::string bad[] = {
      "",
      ";;;;",
      "not a key",
      With(";7:3", ""),
      With(";7:3", ";"),
      With(";7:3", ";7:3;"),
      With(";7:3", ";7:3;more"),
      With(";7:3", ";7"),
      With(";7:3", ";7:"),
      With(";7:3", ";:3"),
      With(";7:3", ";7:3 "),
      With(";7:3", ";07:3"),
      With(";7:3", ";+7:3"),
      With(";7:3", ";-7:3"),
      With(";7:3", ";18446744073709551616:0"),
      With("edge_1", ""),
      With("0000000000001ed2", "1ed2"),
      With("0000000000001ed2", "0000000000001ED2"),
      With("0000000000001ed2", "000000000000 ed2"),
      With("0000000000001ed2", "00000000000001ed2"),
      With("0000000000001ed2", "000000000000xed2"),
      With("/device:GPU:0", ""),
      With("/device:GPU:0", "/device:GPU:*"),
      With("/device:GPU:0", "/device:GPU:0/"),
      With("/device:GPU:0", "/Cpu:0"),
      With("/device:GPU:0", "/tpu:0"),
      With("/device:GPU:0", "/cpu:"),
      With("/device:GPU:0", "/cpu:0/cpu:0"),
      With("/job:mnist/replica:1/task:2/device:CPU:0", "/cpu:0"),
      With("/job:mnist", "/job:"),
      With("/job:mnist", "/job:1mnist"),
      With("task:2", "task:99999999999"),
      With("task:2", "task:02"),
      With("/replica:1", ""),
      std::string(kText) + std::string(TensorKey::kMaxBytes, '0'),
  };
  for (const std::string& text : bad) {
    absl::StatusOr<TensorKey> key = TensorKey::Parse(text);
    ASSERT_FALSE(key.ok()) << text;
    EXPECT_EQ(key.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(key.status().message().substr(0, 25), "Invalid  rendezvous key: ") << key.status();
    EXPECT_LT(key.status().message().size(), 1400u) << "a peer's text is cut";
  }
}

TEST(TensorKey, ErrorTextEscapesWhatItEchoes) {
  const absl::Status status = TensorKey::Parse("a\nb\x01").status();
  EXPECT_NE(status.message().find("a\\nb\\x01"), absl::string_view::npos) << status;
}

TEST(TensorKey, DevicesAsTensorFlow1WroteThemBecomeTodays) {
  for (const char* cpu : {"/cpu:0", "/CPU:0", "/device:CPU:0"}) {
    for (const char* gpu : {"/gpu:0", "/GPU:0", "/device:GPU:0"}) {
      std::string text = With("/device:CPU:0", cpu);
      text.replace(text.find("/device:GPU:0"), 13, gpu);
      const absl::StatusOr<TensorKey> key = TensorKey::Parse(text);
      ASSERT_TRUE(key.ok()) << key.status();
      EXPECT_EQ(key->text(), kText);
      EXPECT_EQ(key->src().type, "CPU");
      EXPECT_EQ(key->dst().worker, "/job:mnist/replica:1/task:2");
    }
  }
  EXPECT_EQ(TensorKey::Parse(With("/job:mnist/replica:1/task:2/device:CPU:0;", ";"))->hash(),
            TensorKey::Parse(With("/job:mnist/replica:1/task:2/device:CPU:0;"
                                  "0000000000001ed2;/job:mnist/replica:1/task:2/device:GPU:0",
                                  ";0000000000001ed2;/job:mnist/replica:1/task:2/gpu:0"))
                ->hash());
  const auto prefix = TensorKeyPrefix::Make("/job:mnist/replica:1/task:2/cpu:0", 7890,
                                            "/job:mnist/replica:1/task:2/gpu:0", "edge_1");
  ASSERT_TRUE(prefix.ok()) << prefix.status();
  EXPECT_EQ(prefix->At(7, 3).text(), kText);
}

TEST(TensorKey, EqualKeysAreEqualTexts) {
  const TensorKey a = *TensorKey::Parse(kText);
  const TensorKey b = *TensorKey::Parse(std::string(kText));
  EXPECT_EQ(a, b);
  EXPECT_EQ(a.hash(), b.hash());
  for (const std::string& text : {With("edge_1", "edge_2"), With("7:3", "7:4"), With("7:3", "8:3"),
                                  With("GPU", "CPU"), With("1ed2", "1ed3")}) {
    EXPECT_NE(a, *TensorKey::Parse(text));
  }
  EXPECT_NE(a, TensorKey());
  EXPECT_EQ(TensorKey(), TensorKey());
  EXPECT_TRUE(TensorKey().empty());
}

TEST(TensorKey, WithAnotherEdgeIsTheKeyThatWouldBeParsed) {
  for (const std::string& text : {std::string(kText), With("edge_1", "e"), With("7:3", "0:12345"),
                                  With("/job:mnist/replica:1/task:2/device:CPU:0;", ";")}) {
    const TensorKey key = *TensorKey::Parse(text);
    for (const std::string& edge : {std::string("f"), std::string("a_longer|one"),
                                    std::string(TensorKey::kMaxBytes - 200, 'x')}) {
      const TensorKey made = *key.WithEdge(edge);
      const std::string old = absl::StrCat(";", key.edge(), ";");
      std::string wanted = text;
      wanted.replace(wanted.find(old), old.size(), absl::StrCat(";", edge, ";"));
      const TensorKey parsed = *TensorKey::Parse(wanted);
      EXPECT_EQ(made.text(), wanted);
      EXPECT_EQ(made.hash(), parsed.hash());
      EXPECT_EQ(made.edge(), edge);
      EXPECT_EQ(made.src_device(), key.src_device());
      EXPECT_EQ(made.src().worker, key.src().worker);
      EXPECT_EQ(made.src_incarnation(), key.src_incarnation());
      EXPECT_EQ(made.dst().type, "GPU");
      EXPECT_EQ(made.frame(), key.frame());
      EXPECT_EQ(made.iter(), key.iter());
      EXPECT_EQ(made.WithEdge(key.edge())->text(), text);
    }
  }
}

TEST(TensorKey, WithAnotherEdgeRefusesWhatParseRefuses) {
  const TensorKey key = *TensorKey::Parse(kText);
  for (const std::string& edge :
       {std::string(), std::string("a;b"), std::string(TensorKey::kMaxBytes, 'x')}) {
    const absl::Status refused = key.WithEdge(edge).status();
    EXPECT_EQ(refused, TensorKey::Parse(With("edge_1", edge)).status());
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(TensorKeyPrefix, MakesTheKeysOfALoop) {
  const TensorKey parsed = *TensorKey::Parse(kText);
  absl::StatusOr<TensorKeyPrefix> prefix = TensorKeyPrefix::Make(
      parsed.src_device(), parsed.src_incarnation(), parsed.dst_device(), parsed.edge());
  ASSERT_TRUE(prefix.ok());
  EXPECT_EQ(prefix->At(7, 3), parsed);
  EXPECT_EQ(prefix->At(7, 3).hash(), parsed.hash());
  EXPECT_EQ(prefix->At(UINT64_MAX, UINT64_MAX),
            *TensorKey::Parse(With("7:3", "18446744073709551615:18446744073709551615")));
  EXPECT_EQ(prefix->At(0, 0).edge(), "edge_1");
  EXPECT_EQ(prefix->At(5, 1).dst().worker, "/job:mnist/replica:1/task:2");
}

TEST(TensorKeyPrefix, ReusesAKeyThatNobodyElseHolds) {
  const TensorKeyPrefix prefix = *TensorKeyPrefix::Make(
      "/job:a/replica:0/task:0/device:CPU:0", 1, "/job:a/replica:0/task:1/device:CPU:0", "e");
  TensorKey key = prefix.At(1, 9);
  const char* const where = key.text().data();
  prefix.Assign(1, 10, &key);
  EXPECT_EQ(key.text().data(), where);
  EXPECT_EQ(key, *TensorKey::Parse(key.text()));
  const TensorKey held = key;
  prefix.Assign(1, 11, &key);
  EXPECT_NE(key.text().data(), where);
  EXPECT_EQ(held.iter(), 10u) << "what others hold does not change";
  const TensorKeyPrefix other = *TensorKeyPrefix::Make("/job:a/replica:0/task:0/device:CPU:0", 1,
                                                       "/job:a/replica:0/task:1/device:CPU:0", "f");
  other.Assign(1, 12, &key);
  EXPECT_EQ(key.edge(), "f");
}

TEST(TensorKeyPrefix, RefusesWhatParseRefuses) {
  const char device[] = "/job:a/replica:0/task:0/device:CPU:0";
  EXPECT_FALSE(TensorKeyPrefix::Make("cpu", 1, device, "e").ok());
  EXPECT_FALSE(TensorKeyPrefix::Make(device, 1, device, "").ok());
  EXPECT_FALSE(TensorKeyPrefix::Make(device, 1, device, "a;b").ok());
  EXPECT_TRUE(TensorKeyPrefix::Make("", 1, device, "e").ok());
}

}  // namespace
}  // namespace tryst
