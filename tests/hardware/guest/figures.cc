// figures write_bw|write_lat DEVICE PEER_DEVICE BYTES COUNT
//
// Measures bandwidth and latency through verbs/nic.h, as perftest's ib_write_bw and ib_write_lat
// do, so that the figures can be compared: two processes that poll, 128 writes in flight (all
// signaled above 8 KiB, otherwise every hundredth), small payloads inline, and for latency half of
// a round trip through memory. Prints one number: MB/s (10^6 bytes), or the median in us.
#include <sys/socket.h>
#include <x86intrin.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/clock.h"
#include "tests/hardware/guest/fork_pair.h"
#include "tests/hardware/guest/rdma_end.h"

namespace tryst {
namespace {

constexpr uint32_t kDepth = 128;
constexpr size_t kSignalAllAboveBytes = 8192;
constexpr uint64_t kSignalEvery = 100;
constexpr size_t kInlineBytes = 220;

struct Arguments {
  std::string device;
  size_t bytes;
  uint64_t count;
};

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "figures: %s\n", status.ToString().c_str());
  return 1;
}

bool Await(int socket) {
  char byte;
  return recv(socket, &byte, 1, 0) == 1;
}
void Tell(int socket) {
  const char byte = 0;
  if (send(socket, &byte, 1, MSG_NOSIGNAL) != 1) std::perror("figures: send");
}

absl::StatusOr<RdmaEnd> Open(const Arguments& arguments, int socket) {
  QueuePairOptions options;
  options.send_depth = kDepth;
  options.receive_depth = 1;
  options.max_inline_bytes = kInlineBytes;
  options.ack_timeout = 18;  // Long, because a busy host is not a fault.
  // Two buffers: one to send from and one to receive into.
  absl::StatusOr<RdmaEnd> end = OpenRdmaEnd(arguments.device, 2 * arguments.bytes, options);
  if (!end.ok()) return end;
  const absl::Status met = Meet(socket, &*end);
  if (!met.ok()) return met;
  return end;
}

// Polls once. Returns the number of completions, or a negative number when one failed.
int PollOnce(RdmaEnd* end, absl::Span<Completion> out) {
  const absl::StatusOr<size_t> count = end->completions->Poll(out);
  if (!count.ok()) return -1;
  for (size_t i = 0; i < *count; ++i) {
    if (out[i].status != CompletionStatus::kOk) return -1;
  }
  return static_cast<int>(*count);
}

int Bandwidth(const Arguments& arguments, int socket) {
  absl::StatusOr<RdmaEnd> end = Open(arguments, socket);
  if (!end.ok()) return Fail(end.status());
  Entry entry;
  SendWork work = end->Write(0, 0, arguments.bytes, &entry);
  work.inline_data = arguments.bytes <= kInlineBytes;
  const bool all = arguments.bytes > kSignalAllAboveBytes;
  const SteadyClock clock;
  const int64_t begin = clock.NowNs();
  uint64_t posted = 0;
  uint64_t done = 0;
  Completion out[16];
  while (done < arguments.count) {
    while (posted < arguments.count && end->pair->send_room() > 0) {
      work.id = posted;
      work.signaled =
          all || posted % kSignalEvery == kSignalEvery - 1 || posted + 1 == arguments.count;
      const absl::Status status = end->pair->PostSend(absl::MakeConstSpan(&work, 1));
      if (!status.ok()) return Fail(status);
      ++posted;
    }
    const int count = PollOnce(&*end, absl::MakeSpan(out));
    if (count < 0) return Fail(absl::UnavailableError("a write failed"));
    if (count > 0) done = out[count - 1].id + 1;
  }
  const int64_t took_ns = clock.NowNs() - begin;
  Tell(socket);
  std::printf("%.2f\n", static_cast<double>(arguments.bytes * arguments.count) * 1e3 /
                            static_cast<double>(took_ns));
  return 0;
}

int BandwidthPeer(const Arguments& arguments, int socket) {
  const absl::StatusOr<RdmaEnd> end = Open(arguments, socket);
  if (!end.ok()) return Fail(end.status());
  return Await(socket) ? 0 : 1;
}

// Both sides of the latency test: each waits for the next number in the last byte of its buffer and
// writes it back. The side that begins measures the times.
int Latency(const Arguments& arguments, int socket, bool serves) {
  absl::StatusOr<RdmaEnd> end = Open(arguments, socket);
  if (!end.ok()) return Fail(end.status());
  volatile char* const arrived = end->memory.get() + 2 * arguments.bytes - 1;
  volatile char* const sent = end->memory.get() + arguments.bytes - 1;
  Entry entry;
  SendWork work = end->Write(0, 0, arguments.bytes, &entry);
  work.remote_address = end->remote_address + arguments.bytes;
  work.inline_data = arguments.bytes <= kInlineBytes;
  // Counts cycles, as perftest does: where the kernel does not trust the cycle counter, reading the
  // clock is a system call of some microseconds.
  const SteadyClock clock;
  const int64_t begin_ns = clock.NowNs();
  const uint64_t begin_cycles = __rdtsc();
  std::vector<uint64_t> at_cycles(arguments.count);
  uint64_t received = 0;
  for (uint64_t turn = 0; turn < arguments.count; ++turn) {
    if (!serves || turn > 0) {
      ++received;
      while (*arrived != static_cast<char>(received)) {
      }
    }
    at_cycles[turn] = __rdtsc();
    *sent = static_cast<char>(turn + 1);
    const absl::Status status = end->pair->PostSend(absl::MakeConstSpan(&work, 1));
    if (!status.ok()) return Fail(status);
    Completion out[1];
    int count = 0;
    while ((count = PollOnce(&*end, absl::MakeSpan(out))) == 0) {
    }
    if (count < 0) return Fail(absl::UnavailableError("a write failed"));
  }
  Tell(socket);
  if (!Await(socket)) return 1;
  if (!serves) return 0;
  const double cycles_per_us = static_cast<double>(__rdtsc() - begin_cycles) * 1e3 /
                               static_cast<double>(clock.NowNs() - begin_ns);
  std::vector<uint64_t> took;
  for (uint64_t turn = 1; turn < arguments.count; ++turn) {
    took.push_back(at_cycles[turn] - at_cycles[turn - 1]);
  }
  const auto median = took.begin() + static_cast<std::ptrdiff_t>(took.size() / 2);
  std::nth_element(took.begin(), median, took.end());
  std::printf("%.2f\n", static_cast<double>(*median) / cycles_per_us / 2);
  return 0;
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  const std::string what = argc == 6 ? argv[1] : "";
  if (what != "write_bw" && what != "write_lat") {
    std::fprintf(stderr, "figures write_bw|write_lat DEVICE PEER_DEVICE BYTES COUNT\n");
    return 2;
  }
  tryst::Arguments ours = {argv[2], std::strtoull(argv[4], nullptr, 10),
                           std::strtoull(argv[5], nullptr, 10)};
  tryst::Arguments theirs = ours;
  theirs.device = argv[3];
  if (what == "write_bw") {
    return tryst::RunForked([&](int socket, pid_t) { return tryst::Bandwidth(ours, socket); },
                            [&](int socket) { return tryst::BandwidthPeer(theirs, socket); });
  }
  return tryst::RunForked([&](int socket, pid_t) { return tryst::Latency(ours, socket, true); },
                          [&](int socket) { return tryst::Latency(theirs, socket, false); });
}
