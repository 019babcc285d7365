// stream [--seconds=N] [--fault=COMMAND] [--mend=COMMAND] [--kill-peer] [--patient]
// --expect=survive|break DEVICE PEER_DEVICE
//
// One process streams 64 KiB writes with immediate to another, 16 in flight. The other checks that
// the immediates come in order and that each write's bytes are in place. After a second the fault
// is put on (or the peer killed), and two seconds later it is taken off. Exit code 0: it went as
// expected. `survive`: no work failed, nothing was lost or out of order, and data moved after the
// fault. `break`: a work failed with "retries exceeded" within the time that the settings give, and
// the queue pair drained.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "tests/hardware/guest/fork_pair.h"
#include "tests/hardware/guest/rdma_end.h"

namespace tryst {
namespace {

constexpr size_t kBytes = 65536;
constexpr uint32_t kInFlight = 16;
constexpr uint32_t kReceives = 64;
constexpr int64_t kSecondNs = 1'000'000'000;
// A dead peer must be reported within this time. The settings make it 0.4 s; an emulated machine on
// a busy host may take several times that.
constexpr int64_t kNoticedWithinNs = 10 * kSecondNs;

struct Arguments {
  int seconds = 5;
  std::string fault;
  std::string mend;
  bool kill_peer = false;
  bool patient = false;
  bool survives = true;
  std::string device;
  std::string peer_device;
};

int Fail(const char* who, const std::string& why) {
  std::printf("%s: %s\n", who, why.c_str());
  return 1;
}

absl::StatusOr<RdmaEnd> Open(const std::string& device, const Arguments& arguments, int socket) {
  QueuePairOptions options;
  options.send_depth = kInFlight;
  options.receive_depth = kReceives;
  options.ack_timeout = arguments.patient ? 18 : 14;  // 1 s, or 67 ms.
  options.retry_count = arguments.patient ? 6 : 5;
  options.rnr_retry_count = 7;
  absl::StatusOr<RdmaEnd> end = OpenRdmaEnd(device, kBytes * kInFlight, options);
  if (!end.ok()) return end;
  if (device == arguments.peer_device) {
    const std::vector<ReceiveWork> receives(kReceives);
    const absl::Status posted = end->pair->PostReceive(receives);
    if (!posted.ok()) return posted;
  }
  const absl::Status met = Meet(socket, &*end);
  if (!met.ok()) return met;
  return end;
}

void RunCommand(const std::string& command) {
  if (command.empty()) return;
  const int code = std::system(command.c_str());
  if (code != 0) std::printf("sender: \"%s\" gave %d\n", command.c_str(), code);
}

// The sending side, which also puts the fault on and takes it off.
class Sender {
 public:
  Sender(const Arguments& arguments, pid_t peer, RdmaEnd end)
      : arguments_(arguments), peer_(peer), end_(std::move(end)), begin_ns_(clock_.NowNs()) {}

  int Run() {
    while (clock_.NowNs() - begin_ns_ < arguments_.seconds * kSecondNs && broken_ns_ == 0) {
      FollowScript();
      const absl::Status status = PostAll();
      if (!status.ok()) return Fail("sender", status.ToString());
      if (!Poll()) return Fail("sender", "the completion queue is lost");
    }
    return arguments_.survives ? JudgeSurvival() : JudgeBreak();
  }

 private:
  void FollowScript() {
    const int64_t now_ns = clock_.NowNs() - begin_ns_;
    if (now_ns > kSecondNs && fault_ns_ == 0) {
      if (arguments_.kill_peer) kill(peer_, SIGKILL);
      RunCommand(arguments_.fault);
      fault_ns_ = clock_.NowNs();
    }
    if (now_ns > 3 * kSecondNs && mend_ns_ == 0) {
      RunCommand(arguments_.mend);
      mend_ns_ = clock_.NowNs();
    }
  }

  absl::Status PostAll() {
    while (end_.pair->state() == QueuePairState::kReady && end_.pair->send_room() > 0) {
      const size_t offset = (posted_ % kInFlight) * kBytes;
      std::memcpy(end_.memory.get() + offset, &posted_, sizeof(posted_));
      std::memcpy(end_.memory.get() + offset + kBytes - sizeof(posted_), &posted_, sizeof(posted_));
      Entry entry;
      SendWork work = end_.Write(posted_, offset, kBytes, &entry);
      work.op = SendOp::kWriteWithImmediate;
      work.immediate = posted_;
      const absl::Status status = end_.pair->PostSend(absl::MakeConstSpan(&work, 1));
      if (!status.ok()) return status;
      ++posted_;
    }
    return absl::OkStatus();
  }

  bool Poll() {
    Completion out[16];
    const absl::StatusOr<size_t> count = end_.completions->Poll(absl::MakeSpan(out));
    if (!count.ok()) return false;
    for (size_t i = 0; i < *count; ++i) {
      if (out[i].status != CompletionStatus::kOk) {
        if (broken_ns_ == 0) cause_ = out[i].status;
        if (broken_ns_ == 0) broken_ns_ = clock_.NowNs();
        continue;
      }
      ++done_;
      last_done_ns_ = clock_.NowNs();
    }
    return true;
  }

  int JudgeSurvival() const {
    const double seconds = static_cast<double>(clock_.NowNs() - begin_ns_) / 1e9;
    std::printf("sender: %u writes in %.1f s, %.1f MB/s\n", done_, seconds,
                static_cast<double>(done_) * kBytes / 1e6 / seconds);
    if (broken_ns_ != 0) return Fail("sender", CompletionStatusName(cause_));
    if (!arguments_.mend.empty() && last_done_ns_ < mend_ns_) {
      return Fail("sender", "nothing moved after the mending");
    }
    return done_ > 0 ? 0 : Fail("sender", "nothing moved");
  }

  int JudgeBreak() {
    if (broken_ns_ == 0) return Fail("sender", "no work failed");
    const int64_t after_ns = broken_ns_ - fault_ns_;
    std::printf("sender: %s %.2f s after the fault, %u writes before\n",
                CompletionStatusName(cause_), static_cast<double>(after_ns) / 1e9, done_);
    if (cause_ != CompletionStatus::kRetryExceeded) return Fail("sender", "not for that reason");
    if (after_ns > kNoticedWithinNs) return Fail("sender", "too late");
    const int64_t begin_ns = clock_.NowNs();
    while (end_.pair->state() != QueuePairState::kDrained) {
      if (!Poll()) return Fail("sender", "the completion queue is lost");
      if (clock_.NowNs() - begin_ns > kNoticedWithinNs) return Fail("sender", "does not drain");
    }
    return 0;
  }

  const Arguments& arguments_;
  const pid_t peer_;
  RdmaEnd end_;
  const SteadyClock clock_;
  const int64_t begin_ns_;
  int64_t fault_ns_ = 0;
  int64_t mend_ns_ = 0;
  int64_t broken_ns_ = 0;
  int64_t last_done_ns_ = 0;
  CompletionStatus cause_ = CompletionStatus::kOk;
  uint32_t posted_ = 0;
  uint32_t done_ = 0;
};

int Receive(const Arguments& arguments, int socket) {
  absl::StatusOr<RdmaEnd> end = Open(arguments.peer_device, arguments, socket);
  if (!end.ok()) return Fail("receiver", end.status().ToString());
  const SteadyClock clock;
  const int64_t begin_ns = clock.NowNs();
  uint32_t expected = 0;
  // A little longer than the sender, so that all it has sent arrives.
  while (clock.NowNs() - begin_ns < (arguments.seconds + 1) * kSecondNs) {
    Completion out[16];
    const absl::StatusOr<size_t> count = end->completions->Poll(absl::MakeSpan(out));
    if (!count.ok()) return Fail("receiver", count.status().ToString());
    for (size_t i = 0; i < *count; ++i) {
      if (out[i].status != CompletionStatus::kOk) {
        return arguments.survives ? Fail("receiver", CompletionStatusName(out[i].status)) : 0;
      }
      if (out[i].immediate != expected) return Fail("receiver", "out of order");
      // A later write may have replaced the bytes already, but never an older one.
      const char* const slot = end->memory.get() + (expected % kInFlight) * kBytes;
      uint32_t head;
      uint32_t tail;
      std::memcpy(&head, slot, sizeof(head));
      std::memcpy(&tail, slot + kBytes - sizeof(tail), sizeof(tail));
      if (head < expected || tail < expected) return Fail("receiver", "bytes not in place");
      ++expected;
      const ReceiveWork again;
      const absl::Status posted = end->pair->PostReceive(absl::MakeConstSpan(&again, 1));
      if (!posted.ok()) return Fail("receiver", posted.ToString());
    }
  }
  std::printf("receiver: %u in order\n", expected);
  return 0;
}

bool Parse(int argc, char** argv, Arguments* arguments) {
  std::vector<std::string> devices;
  bool expects = false;
  for (int i = 1; i < argc; ++i) {
    absl::string_view word = argv[i];
    if (absl::ConsumePrefix(&word, "--seconds=")) {
      if (!absl::SimpleAtoi(word, &arguments->seconds)) return false;
    } else if (absl::ConsumePrefix(&word, "--fault=")) {
      arguments->fault = std::string(word);
    } else if (absl::ConsumePrefix(&word, "--mend=")) {
      arguments->mend = std::string(word);
    } else if (absl::ConsumePrefix(&word, "--expect=")) {
      if (word != "survive" && word != "break") return false;
      arguments->survives = word == "survive";
      expects = true;
    } else if (word == "--kill-peer") {
      arguments->kill_peer = true;
    } else if (word == "--patient") {
      arguments->patient = true;
    } else if (absl::StartsWith(word, "--")) {
      return false;
    } else {
      devices.emplace_back(word);
    }
  }
  if (!expects || devices.size() != 2) return false;
  arguments->device = devices[0];
  arguments->peer_device = devices[1];
  return true;
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  tryst::Arguments arguments;
  if (!tryst::Parse(argc, argv, &arguments)) {
    std::fprintf(stderr,
                 "stream [--seconds=N] [--fault=COMMAND] [--mend=COMMAND] [--kill-peer] "
                 "[--patient] --expect=survive|break DEVICE PEER_DEVICE\n");
    return 2;
  }
  return tryst::RunForked(
      [&](int socket, pid_t child) {
        absl::StatusOr<tryst::RdmaEnd> end = tryst::Open(arguments.device, arguments, socket);
        if (!end.ok()) return tryst::Fail("sender", end.status().ToString());
        return tryst::Sender(arguments, child, *std::move(end)).Run();
      },
      [&](int socket) { return tryst::Receive(arguments, socket); });
}
