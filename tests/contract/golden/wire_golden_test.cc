// The bytes of each protocol version, fixed for good. A change that makes this test fail is a new
// protocol version: it gets a file of its own, and the older ones stay readable. A version contains
// those before it, and its file holds only what is new.

#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "channel/rdma/wire.h"
#include "gtest/gtest.h"

namespace tryst {
namespace wire {
namespace {

std::string Finish(MessageWriter* writer, std::vector<uint8_t>* slot) {
  const size_t bytes = writer->Finish(3, 70000, 69990, 9);
  return std::string(reinterpret_cast<const char*>(slot->data()), bytes);
}

Record Slot7(RecordType type) {
  Record record;
  record.type = type;
  record.slot = 7;
  record.generation = 513;
  return record;
}

TensorMeta Meta() {
  TensorMeta meta;
  meta.dtype = 1;
  meta.rank = 2;
  meta.stripes = 4;
  meta.digest = 0x01020304;
  meta.dims[0] = 2;
  meta.dims[1] = 3;
  meta.bytes = 24;
  return meta;
}

RequestBody IntoMemory() {
  RequestBody body;
  body.step = -2;
  body.destination_address = 0x1000;
  body.destination_bytes = 24;
  body.destination_key = 0xabcd;
  body.dtype = 1;
  body.rank = 2;
  body.dims[0] = 2;
  body.dims[1] = 3;
  return body;
}

std::map<std::string, std::string> Examples() {
  std::map<std::string, std::string> out;
  std::vector<uint8_t> slot(8192);
  {
    MessageWriter writer(slot.data(), slot.size());
    Record key;
    key.type = RecordType::kKey;
    key.number = 5;
    key.body = "a key";
    writer.Add(key);
    Record request = Slot7(RecordType::kRequest);
    request.number = 5;
    request.flags = kHasDestination | kHasShape | kReplay | kRetry;
    writer.AddRequest(request, IntoMemory());
    writer.Add(Slot7(RecordType::kCancel));
    writer.Add(Slot7(RecordType::kReplayed));
    writer.Add(Slot7(RecordType::kPing));
    out["consumer"] = Finish(&writer, &slot);
  }
  {
    MessageWriter writer(slot.data(), slot.size());
    uint8_t* payload = writer.AddTensor(Slot7(RecordType::kTensor), Meta());
    memcpy(payload, "twenty-four bytes of it.", 24);
    Record landed = Slot7(RecordType::kLanded);
    landed.flags = kHasDigest;
    writer.AddMeta(landed, Meta());
    writer.AddMeta(Slot7(RecordType::kNeedDestination), Meta());
    Record failed = Slot7(RecordType::kFailed);
    failed.flags = kDerived;
    failed.number = 10;
    failed.body = "aborted";
    writer.Add(failed);
    writer.Add(Slot7(RecordType::kGone));
    writer.Add(Slot7(RecordType::kPong));
    out["producer"] = Finish(&writer, &slot);
  }
  ChannelParameters parameters;
  parameters.slots = 128;
  parameters.ring_slots = 16;
  parameters.message_bytes = 8192;
  parameters.ring_address = 0x0102030405060708;
  parameters.ring_key = 0x11121314;
  parameters.ack_key = 0x21222324;
  parameters.ack_address = 0x3132333435363738;
  parameters.session = 0x4142434445464748;
  out["parameters"].resize(kParametersBytes);
  EncodeParameters(parameters, reinterpret_cast<uint8_t*>(&out["parameters"][0]));
  return out;
}

// Version 2 adds a request that is made before its fetch.
std::string StandingExample() {
  std::vector<uint8_t> slot(8192);
  MessageWriter writer(slot.data(), slot.size());
  Record request = Slot7(RecordType::kRequest);
  request.number = 5;
  request.flags = kHasDestination | kHasShape | kStanding;
  writer.AddRequest(request, IntoMemory());
  return Finish(&writer, &slot);
}

std::map<std::string, std::string> Golden(const std::string& version = "v1") {
  std::ifstream file("tests/contract/golden/wire_" + version + ".txt");
  std::map<std::string, std::string> out;
  std::string name, hex;
  while (file >> name >> hex) out[name] = absl::HexStringToBytes(hex);
  return out;
}

TEST(WireGoldenTest, VersionOneIsWrittenAsEver) {
  const std::map<std::string, std::string> golden = Golden();
  for (const auto& example : Examples()) {
    ASSERT_EQ(golden.count(example.first), 1u) << example.first;
    EXPECT_EQ(absl::BytesToHexString(example.second),
              absl::BytesToHexString(golden.at(example.first)))
        << example.first;
  }
}

TEST(WireGoldenTest, VersionOneIsReadAsEver) {
  const std::map<std::string, std::string> golden = Golden();
  std::vector<RecordType> types;
  for (const char* name : {"consumer", "producer"}) {
    const std::string& bytes = golden.at(name);
    auto reader = MessageReader::Open(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_EQ(reader->header().sequence, 70000u);
    Record record;
    while (*reader->Next(&record)) {
      types.push_back(record.type);
      if (record.type == RecordType::kRequest) {
        EXPECT_EQ(DecodeRequest(record)->dims[1], 3);
        EXPECT_EQ(record.generation, 513);
      }
      if (record.type == RecordType::kLanded) {
        EXPECT_EQ(DecodeMeta(record, nullptr)->digest, 0x01020304u);
      }
    }
  }
  EXPECT_EQ(types.size(), 11u);
  EXPECT_EQ(DecodeParameters(golden.at("parameters"))->session, 0x4142434445464748u);
}

TEST(WireGoldenTest, VersionTwoIsWrittenAndReadAsEver) {
  const std::string golden = Golden("v2").at("standing");
  EXPECT_EQ(absl::BytesToHexString(StandingExample()), absl::BytesToHexString(golden));
  auto reader = MessageReader::Open(reinterpret_cast<const uint8_t*>(golden.data()), golden.size());
  ASSERT_TRUE(reader.ok()) << reader.status();
  Record record;
  ASSERT_TRUE(*reader->Next(&record));
  EXPECT_EQ(record.flags, kHasDestination | kHasShape | kStanding);
  EXPECT_EQ(DecodeRequest(record)->step, -2);
}

}  // namespace
}  // namespace wire
}  // namespace tryst
