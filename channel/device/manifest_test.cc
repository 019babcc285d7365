#include "channel/device/manifest.h"

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

using Kind = DeviceAsk::Kind;

TensorKey Key(const std::string& edge) {
  return TensorKeyPrefix::Make("/job:p/replica:0/task:0/device:GPU:0", 1,
                               "/job:c/replica:0/task:0/device:GPU:0", edge)
      ->At(0, 0);
}

Kind KindOf(const std::string& question) {
  return ParseDeviceAsk(Key(absl::StrCat("e|device|", question))).kind;
}

TEST(DeviceAskTest, EachQuestionIsKnownByItsParts) {
  EXPECT_EQ(ParseDeviceAsk(Key("e")).kind, Kind::kNone);
  EXPECT_EQ(KindOf("1f"), Kind::kManifest);
  EXPECT_EQ(KindOf("1f|into|1|2,3"), Kind::kManifest);
  EXPECT_EQ(KindOf("1f|chunk|3"), Kind::kChunk);
  EXPECT_EQ(KindOf("1f|chunks|3|name|token"), Kind::kChunks);
  EXPECT_EQ(KindOf("1f|done"), Kind::kDone);
  EXPECT_EQ(KindOf("1f|back"), Kind::kBack);
  EXPECT_EQ(KindOf("1f|alive"), Kind::kAlive);
  EXPECT_EQ(KindOf("1f|whole"), Kind::kWhole);
  EXPECT_EQ(KindOf("0|probe"), Kind::kProbe);
  EXPECT_EQ(KindOf("0|direct"), Kind::kDirect);
}

TEST(DeviceAskTest, WhatIsNoQuestionIsWrong) {
  for (const char* question : {"",
                               "x",
                               "1f|",
                               "x|done",
                               "1f|more",
                               "1f|done|1",
                               "1f|into",
                               "1f|into|1",
                               "1f|unto|1|2",
                               "1f|into|1|2|3",
                               "x|into|1|2",
                               "1f|into|x|2",
                               "1f|into|256|2",
                               "1f|into|-1|2",
                               "1f|into|1|x",
                               "1f|into|1|-2",
                               "1f|chunk|x",
                               "1f|chunk|1|2",
                               "1f|chunks|1",
                               "1f|chunks|1|n",
                               "1f|chunks|x|n|t",
                               "1f|chunks|1|n|t|",
                               "1f|chunk|1|n|t"}) {
    EXPECT_EQ(KindOf(question), Kind::kWrong) << question;
  }
}

TEST(DeviceAskTest, AQuestionSaysWhatItWasMadeOf) {
  const Tensor into = *Tensor::Allocate(DType::kFloat, {2, 3});
  const TensorKey manifest = *ManifestKey(Key("e"), 0xabc, into);
  DeviceAsk ask = ParseDeviceAsk(manifest);
  EXPECT_EQ(ask.host, 0xabcu);
  ASSERT_TRUE(ask.has_shape);
  EXPECT_EQ(ask.dtype, DType::kFloat);
  EXPECT_EQ(ask.shape, into.shape());
  EXPECT_EQ(*PlainKey(manifest, ask), Key("e"));
  const TensorKey chunks = *ChunksKey(Key("e"), 0xabc, 5, "name", "token");
  ask = ParseDeviceAsk(chunks);
  EXPECT_EQ(ask.transfer, 0xabcu);
  EXPECT_EQ(ask.chunk, 5u);
  EXPECT_EQ(ask.mailbox, "name");
  EXPECT_EQ(ask.token, "token");
  EXPECT_TRUE(absl::IsInvalidArgument(TransferKey(chunks, 1, "done").status()))
      << "it is a question already";
}

TEST(ManifestTest, ComesBackAsItWas) {
  for (const bool has_chunks : {false, true}) {
    DeviceManifest manifest;
    manifest.dtype = DType::kUint8;
    manifest.shape = {8, 1};  // Each of its bytes has another bit than the flags.
    manifest.bytes = 8;
    manifest.transfer = 7;
    manifest.chunk_bytes = 4096;
    manifest.host = 1;
    manifest.process = 2;
    manifest.address = 1 << 20;
    manifest.ordinal = 3;
    manifest.digest = 4;
    manifest.forgotten = 5;
    manifest.on_device = true;
    manifest.has_chunks = has_chunks;
    manifest.has_ipc = !has_chunks;
    manifest.reference.allocation_id = 6;
    manifest.reference.offset = 64;
    manifest.reference.allocation_bytes = 128;
    manifest.reference.chunks = has_chunks ? 9 : 0;
    if (!has_chunks) memset(manifest.reference.handle.bytes, 0xee, 64);
    memset(manifest.uuid.bytes, 0xdd, 16);
    ProveProcess(Key("e"), &manifest);
    const Tensor sent = *Tensor::Allocate(DType::kUint8, {int64_t{DeviceManifest::kBytes}});
    EncodeManifest(manifest, static_cast<uint8_t*>(sent.mutable_data()));
    const auto decoded = DecodeManifest(sent);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->has_chunks, has_chunks);
    EXPECT_EQ(decoded->has_ipc, !has_chunks);
    EXPECT_TRUE(decoded->on_device);
    EXPECT_FALSE(decoded->inside);
    EXPECT_EQ(decoded->reference.chunks, manifest.reference.chunks);
    EXPECT_TRUE(IsOfThisProcess(Key("e"), *decoded)) << "a field differs";
    EXPECT_FALSE(IsOfThisProcess(Key("f"), *decoded));
  }
}

}  // namespace
}  // namespace tryst
