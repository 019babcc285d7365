// channel_figures channel_bw|channel_pull DEVICE PEER_DEVICE BYTES COUNT
//
// Measures keyed tensors through a channel over verbs, to be compared with perftest's figures.
// channel_bw: eight fetches at a time into the caller's memory, in MB/s (10^6 bytes). channel_pull:
// one pull after the other of tensors that have been sent, in us. Both pollers spin. Prints one
// number.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/log.h"
#include "tests/process/pair/worker_pair.h"
#include "verbs/ibv/ibv_nic.h"

namespace tryst {
namespace {

constexpr int kOut = 8;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::unique_ptr<Nic> Open(const std::string& device) {
  IbvNicOptions options;
  options.choice.settings.device = device;
  auto nic = OpenIbvNic(options);
  TRYST_CHECK(nic.ok()) << nic.status();
  return *std::move(nic);
}

// Starts the next pull where the last one ended: on the consumer's poller thread.
class Pulls {
 public:
  Pulls(WorkerPair* pair, int64_t bytes, int out)
      : pair_(pair), key_(WorkerPair::Key("figure")), out_(out) {
    tensor_ = *Tensor::Allocate(DType::kUint8, {bytes});
    std::fill_n(static_cast<uint8_t*>(tensor_.mutable_data()), bytes, uint8_t{1});
    for (int i = 0; i < out; ++i) {
      RecvArgs args;
      args.destination = *Tensor::Allocate(DType::kUint8, {bytes});
      std::fill_n(static_cast<uint8_t*>(args.destination.mutable_data()), bytes, uint8_t{2});
      args_.push_back(std::move(args));
    }
  }

  // Returns the seconds that each of `count` pulls took.
  std::vector<double> Run(int count) {
    for (int i = 0; i < count; ++i) {
      const absl::Status sent = pair_->step()->Send(key_, SendArgs(), tensor_, false);
      TRYST_CHECK(sent.ok()) << sent;
    }
    took_.clear();
    to_start_ = count - out_;
    left_.store(count);
    for (int i = 0; i < out_; ++i) Start(static_cast<size_t>(i));
    while (left_.load() > 0) {
      const timespec time = {0, 1'000'000};
      nanosleep(&time, nullptr);
    }
    return took_;
  }

 private:
  void Start(size_t place) {
    const double begin = Now();
    pair_->consumer()->Fetch(1, key_, args_[place], [this, place, begin](Received&& received) {
      TRYST_CHECK(received.status.ok()) << received.status;
      took_.push_back(Now() - begin);
      const bool more = to_start_-- > 0;
      left_.fetch_sub(1);
      if (more) Start(place);
    });
  }

  WorkerPair* const pair_;
  const TensorKey key_;
  const int out_;
  Tensor tensor_;
  std::vector<RecvArgs> args_;
  // Poller thread only, once started.
  std::vector<double> took_;
  std::atomic<int> to_start_{0};
  std::atomic<int> left_{0};
};

int Main(const std::string& what, const std::string& device, const std::string& peer, int64_t bytes,
         int count) {
  WorkerPairOptions options;
  int opened = 0;
  options.open_nic = [&] { return Open(opened++ == 0 ? device : peer); };
  options.spin_us = 10'000'000;
  options.traced = false;
  options.adjust = [](TransportsOptions* pool) { pool->link.digests = false; };
  WorkerPair pair(options);
  const bool pull = what == "channel_pull";
  Pulls pulls(&pair, bytes, pull ? 1 : kOut);
  // Opens the connection, interns the key, and touches the pages.
  pulls.Run(pull ? 100 : 2 * kOut);
  const double begin = Now();
  std::vector<double> took = pulls.Run(count);
  const double all = Now() - begin;
  if (pull) {
    std::nth_element(took.begin(), took.begin() + count / 2, took.end());
    printf("%.2f\n", took[static_cast<size_t>(count / 2)] * 1e6);
  } else {
    printf("%.2f\n", static_cast<double>(bytes) * count / all / 1e6);
  }
  return 0;
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  const std::string what = argc == 6 ? argv[1] : "";
  if (what != "channel_bw" && what != "channel_pull") {
    fprintf(stderr, "channel_figures channel_bw|channel_pull DEVICE PEER_DEVICE BYTES COUNT\n");
    return 2;
  }
  return tryst::Main(what, argv[2], argv[3], strtoll(argv[4], nullptr, 10), atoi(argv[5]));
}
