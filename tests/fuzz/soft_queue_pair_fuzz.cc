// A peer that holds the token and sends anything. At worst its queue pair breaks. The input is a
// list of frames in a notation so dense that mutations reach deep: each frame starts with a byte
// that selects which fields of an honest frame to change.
#include <cstdio>
#include <memory>
#include <vector>

#include "base/log.h"
#include "tests/doubles/soft/hostile_peer.h"
#include "tests/doubles/soft/soft_world.h"

namespace tryst {
namespace {

constexpr uint64_t kBytes = 4096;
constexpr int kReceives = 4;

class Input {
 public:
  Input(const uint8_t* data, size_t size) : next_(data), end_(data + size) {}
  bool empty() const { return next_ == end_; }
  uint8_t Byte() { return empty() ? 0 : *next_++; }
  uint32_t Word() {
    uint32_t value = 0;
    for (int i = 0; i < 4; ++i) value = value << 8 | Byte();
    return value;
  }

 private:
  const uint8_t* next_;
  const uint8_t* end_;
};

struct Stage {
  Stage() : nic(MustOpenSoftNic(Options())), victim(nic.get(), kBytes) {}

  static SoftNicOptions Options() {
    SoftNicOptions options;
    // A TCP port would stay occupied for a minute after each input.
    options.listen_address = "unix:";
    return options;
  }

  const std::unique_ptr<SoftNic> nic;
  SoftSide victim;
  uint32_t sequence = 0;
};

// An honest request, with the changes that the input asks for.
FrameHeader NextFrame(Input* input, Stage* stage) {
  const uint8_t spoil = input->Byte();
  FrameHeader frame;
  frame.type = static_cast<FrameType>(input->Byte() % 9);
  frame.has_immediate = (spoil & 1) != 0;
  frame.sequence = (spoil & 2) != 0 ? input->Word() : stage->sequence++;
  frame.executed = (spoil & 4) != 0 ? input->Byte() : 0;
  frame.receives = input->Byte();
  frame.remote_key = stage->victim.region->remote_key() ^ ((spoil & 8) != 0 ? input->Word() : 0);
  frame.immediate = input->Byte();
  const bool offset = frame.type == FrameType::kFragment || frame.type == FrameType::kReadResponse;
  frame.address = offset ? 0 : stage->victim.region->address();
  frame.address += input->Byte();
  if ((spoil & 16) != 0) frame.address += static_cast<uint64_t>(input->Word()) - 0x80000000;
  frame.bytes = input->Byte();
  frame.total = (spoil & 32) != 0 ? uint64_t{input->Word()} << (input->Byte() % 33) : frame.bytes;
  if ((spoil & 64) != 0) frame.bytes = input->Word();
  return frame;
}

void PollOften(SoftSide* side) {
  for (int i = 0; i < 3; ++i) side->Poll();
}

void Introduce(Stage* stage, HostilePeer* peer, const std::string& address) {
  peer->Say(HostilePeer::HelloFor(address));
  while (!peer->HearHello().has_value()) stage->victim.Poll();
}

void RunOne(Stage* stage, Input input) {
  SoftSide& victim = stage->victim;
  QueuePairOptions options = SoftSide::UsualOptions();
  victim.OpenQueuePair(options);
  victim.PostReceives(kReceives);
  const std::string address = victim.queue_pair->LocalAddress();
  TRYST_CHECK(victim.queue_pair->Connect(HostilePeer::Address()).ok());
  HostilePeer peer(address);
  Introduce(stage, &peer, address);
  victim.remote = victim.region.get();
  stage->sequence = 0;
  uint32_t posted = 0;
  // Posts works for the peer to answer.
  for (SendOp op : {SendOp::kRead, SendOp::kWrite}) posted += victim.PostWrite(100, op).ok();
  victim.done.clear();
  for (int i = 0; i < 32 && !input.empty(); ++i) {
    if (input.Byte() % 8 == 0) {
      peer.SayBytes(std::vector<uint8_t>(input.Byte(), input.Byte()));
    } else {
      const FrameHeader frame = NextFrame(&input, stage);
      // Sends as many bytes as the frame announces, up to a bound.
      peer.Say(frame, std::vector<uint8_t>(frame.bytes % 5000, input.Byte()));
    }
    PollOften(&victim);
  }
  peer.HangUp();
  while (victim.queue_pair->state() != QueuePairState::kDrained) victim.Poll();
  TRYST_CHECK(victim.done.size() == posted + kReceives) << victim.done.size();
  TRYST_CHECK(victim.RedZonesIntact());
}

}  // namespace
}  // namespace tryst

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static tryst::Stage* const stage = [] {
    tryst::SetLogSink(
        [](tryst::LogSeverity severity, const char* file, int line, absl::string_view text) {
          // One line for each input would be too many.
          if (severity != tryst::LogSeverity::kFatal) return;
          fprintf(stderr, "%s:%d %.*s\n", file, line, static_cast<int>(text.size()), text.data());
        });
    return new tryst::Stage;
  }();
  tryst::RunOne(stage, tryst::Input(data, size));
  return 0;
}
