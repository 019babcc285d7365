#include "channel/ops/farewell.h"

namespace tryst {
namespace {

constexpr size_t kHeadBytes = 16;
constexpr size_t kWantedBytes = 4;

void Put(uint64_t value, int bytes, std::string* out) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

uint64_t Get(absl::string_view in, size_t at, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) {
    value |= uint64_t{static_cast<uint8_t>(in[at + static_cast<size_t>(i)])} << (8 * i);
  }
  return value;
}

}  // namespace

std::string EncodeFarewell(const Farewell& farewell) {
  std::string out;
  out.reserve(kHeadBytes + kWantedBytes * farewell.wanted.size());
  Put(farewell.session, 8, &out);
  Put(farewell.wanted.size(), 4, &out);
  Put(0, 4, &out);
  for (const Farewell::Wanted& wanted : farewell.wanted) {
    Put(wanted.slot, 2, &out);
    Put(wanted.generation, 2, &out);
  }
  return out;
}

absl::StatusOr<Farewell> DecodeFarewell(absl::string_view in) {
  if (in.size() < kHeadBytes)
    return absl::DataLossError("the peer's farewell is malformed: it is too short");
  const uint64_t count = Get(in, 8, 4);
  if (count > Farewell::kMostWanted || Get(in, 12, 4) != 0 ||
      in.size() != kHeadBytes + kWantedBytes * count) {
    return absl::DataLossError(
        "the peer's farewell is malformed: its length does not match its count of fetches");
  }
  Farewell farewell;
  farewell.session = Get(in, 0, 8);
  for (size_t at = kHeadBytes; at < in.size(); at += kWantedBytes) {
    farewell.wanted.push_back(
        {static_cast<uint16_t>(Get(in, at, 2)), static_cast<uint16_t>(Get(in, at + 2, 2))});
  }
  return farewell;
}

}  // namespace tryst
