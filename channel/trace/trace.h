#ifndef TRYST_CHANNEL_TRACE_TRACE_H_
#define TRYST_CHANNEL_TRACE_TRACE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "channel/trace/trace_span.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

struct TraceOptions {
  size_t records = 4096;  // The number of records kept; each takes 384 bytes.
  // One in so many of the operations that were fast and successful; 1: all.
  uint32_t sample_every = 16;
  int64_t slow_ns = 10'000'000;  // Operations that took longer, or failed, are always kept.
  // The path of the shared track for operations that have none of their own.
  std::string name = "others";
};

// Counts of all operations between us and one peer on one path. Never sampled, never reset. The
// thread of its Trace writes it; any thread may read.
class TraceTrack {
 public:
  // How long operations took: 16 buckets for each doubling from 1024 ns to 18 minutes, 16 of
  // 64 ns below, and one for the rest. A bucket's middle is less than 3.2 % from what it counts.
  // All of them are 4 KiB, made at the first operation that ends, so an unused path has none.
  static constexpr size_t kBuckets = 497;
  // The highest bits of a duration are its bucket: the first one says which doubling, the four
  // after it which sixteenth of that.
  static size_t BucketOf(uint64_t took_ns) {
    const int bits = 64 - __builtin_clzll(took_ns | uint64_t{1} << (kFinestShift + kBucketBits));
    if (bits > kMostBits) return kBuckets - 1;
    const int shift = bits - kBucketBits - 1;
    return (static_cast<size_t>(shift - kFinestShift) << kBucketBits) + (took_ns >> shift);
  }
  // The least that bucket `i` counts.
  static uint64_t BucketBeginNs(size_t i);
  struct Counts {
    // A duration that this part of the operations did not exceed, less than 3.2 % off; 0: none
    // has ended. 18 minutes stand for all that took longer.
    double QuantileNs(double quantile) const;
    // Operations that took less; exact where a bucket begins.
    uint64_t TookLessThan(uint64_t ns) const;

    uint64_t ended_ok = 0;
    uint64_t ended_failed = 0;
    uint64_t bytes = 0;
    uint64_t total_ns = 0;
    std::array<uint64_t, kBuckets> took{};
    std::array<uint64_t, kWaitsForCount> waited_ns{};  // By what was waited for.
  };

  TraceTrack(TraceRole role, std::string peer, std::string path, uint16_t index)
      : role(role), peer(std::move(peer)), path(std::move(path)), index(index) {}
  ~TraceTrack() { delete took_.load(std::memory_order_relaxed); }
  Counts counts() const;

  const TraceRole role;
  const std::string peer;
  const std::string path;
  const uint16_t index;

 private:
  friend class Trace;
  static constexpr int kBucketBits = 4;  // 16 buckets for each doubling.
  static constexpr int kFinestShift = 6;
  static constexpr int kMostBits = 40;
  static_assert(kBuckets == ((kMostBits - kFinestShift - kBucketBits + 1) << kBucketBits) + 1,
                "the last bucket counts what took longer");
  using Counter = std::atomic<uint64_t>;
  // There is one writer, so no read-modify-write is needed.
  static void Add(Counter* counter, uint64_t more) {
    counter->store(counter->load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }
  using Buckets = std::array<Counter, kBuckets>;
  Buckets* NewBuckets();

  Counter ended_ok_{0}, ended_failed_{0}, bytes_{0}, total_ns_{0};
  std::atomic<Buckets*> took_{nullptr};  // Owned.
  std::array<Counter, kWaitsForCount> waited_ns_{};
};

// One operation, as read from the ring.
struct TraceRecord {
  uint64_t id = 0;
  int64_t step = 0;
  uint64_t key_hash = 0;
  std::string key;  // A long key is cut in its middle.
  uint16_t track = 0;
  int64_t end_ns = 0;  // 0: it has not ended.
  uint64_t bytes = 0;
  absl::StatusCode code = absl::StatusCode::kOk;
  TraceSpan span;
};

// The operations of one thread: the newest in a ring, all of them in counters. After the first
// operation of a track it allocates nothing and takes no lock.
class Trace {
 public:
  // REQUIRES: options.records and options.sample_every are at least 1.
  explicit Trace(TraceOptions options = {});

  // ---- Any thread ----
  // The track of `peer` by `path`, made when it is new; lives as long as this. The 4096th
  // and later ones share one, without a peer.
  TraceTrack* Track(TraceRole role, const std::string& peer, const std::string& path);
  std::vector<const TraceTrack*> Tracks() const;
  // The records kept, oldest first. Does not stop the writer; records that it overwrites meanwhile
  // are left out.
  std::vector<TraceRecord> Records() const;
  // All that ended = kept + overwritten + passed over (fast, successful and not sampled).
  struct Counts {
    uint64_t ended = 0;
    uint64_t kept = 0;
    uint64_t overwritten = 0;
    uint64_t passed_over = 0;
  };
  Counts counts() const;
  const TraceOptions& options() const { return options_; }
  // As a record has it: a long one is cut in its middle.
  static std::string CutKey(absl::string_view key);

  // ---- One thread at a time: the poller's, or the one that holds the lock of its owner ----
  void End(const TraceSpan& span, TraceTrack* track, int64_t step, const TensorKey& key,
           uint64_t bytes, absl::StatusCode code, int64_t now_ns);

 private:
  static constexpr size_t kHeadWords = 16;
  static constexpr size_t kTextWords = 32;  // For the key.
  static constexpr size_t kTextBytes = kTextWords * sizeof(uint64_t);
  // Not initialised, so that memory is taken from the system only when it is used.
  struct alignas(64) Slot {
    std::array<std::atomic<uint64_t>, kHeadWords + kTextWords> words;
  };

  void Count(const TraceSpan& span, TraceTrack* track, uint64_t bytes, absl::StatusCode code,
             int64_t now_ns);
  static size_t CutKey(absl::string_view whole, char* bytes);
  static void PutText(const TensorKey& key, Slot* slot);
  static TraceRecord Parse(const uint64_t* words);

  // Constant after construction.
  const TraceOptions options_;
  const std::unique_ptr<Slot[]> slots_;

  // Only the writer writes these.
  std::atomic<uint64_t> begun_{0};  // Records whose slot may have been touched.
  std::atomic<uint64_t> written_{0};
  std::atomic<uint64_t> passed_over_{0};

  mutable Mutex mu_;
  std::deque<TraceTrack> tracks_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_TRACE_TRACE_H_
