#ifndef TRYST_RENDEZVOUS_TENSOR_KEY_H_
#define TRYST_RENDEZVOUS_TENSOR_KEY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tryst {

// The components of "/job:J/replica:R/task:T/device:TYPE:N", as views into the key's text.
struct DeviceName {
  absl::string_view worker;  // "/job:J/replica:R/task:T"
  absl::string_view job;
  int32_t replica = 0;
  int32_t task = 0;
  absl::string_view type;
  int32_t index = 0;
};

// Parses the whole `text`; false when it is not a full device name.
bool ParseDeviceName(absl::string_view text, DeviceName* name);

// The name of a tensor within a step:
//   src_device;incarnation;dst_device;edge;frame:iter
// with the source device's incarnation as 16 lower-case hex digits, and the loop frame and
// iteration in decimal (0:0 outside loops). The step is not part of it.
//
// A cheap value: copies share one immutable text. Every component has one spelling, as Parse()
// writes it, so equal keys are equal texts.
class TensorKey {
 public:
  static constexpr size_t kMaxBytes = 4096;

  TensorKey() = default;  // Empty: it names no tensor.
  // A device as TensorFlow 1 wrote it, "/job:J/replica:R/task:T/cpu:N" (or CPU, gpu, GPU),
  // becomes ".../device:CPU:N" in the key's text.
  // kInvalidArgument: "Invalid  rendezvous key: " (two spaces, as TensorFlow has it),
  // the text, escaped and cut, and what is wrong with it. The source device may be
  // empty: a send within one process.
  static absl::StatusOr<TensorKey> Parse(absl::string_view text);
  // The key that differs from this one in its edge alone, without parsing anything again.
  // kInvalidArgument, as Parse(). REQUIRES: !empty().
  absl::StatusOr<TensorKey> WithEdge(absl::string_view edge) const;

  TensorKey(const TensorKey& other) : rep_(other.rep_) {
    if (rep_ != nullptr) rep_->refs.fetch_add(1, std::memory_order_relaxed);
  }
  TensorKey(TensorKey&& other) noexcept : rep_(std::exchange(other.rep_, nullptr)) {}
  TensorKey& operator=(TensorKey other) noexcept {
    std::swap(rep_, other.rep_);
    return *this;
  }
  ~TensorKey() {
    if (rep_ != nullptr) Unref();
  }

  bool empty() const { return rep_ == nullptr; }
  absl::string_view text() const {
    return rep_ == nullptr ? absl::string_view() : absl::string_view(rep_->text, rep_->text_bytes);
  }
  // All accessors below REQUIRE !empty(). The views last as long as any copy of the key.
  absl::string_view src_device() const { return {rep_->text, rep_->src.bytes}; }
  absl::string_view dst_device() const { return {rep_->text + rep_->dst.begin, rep_->dst.bytes}; }
  absl::string_view edge() const { return {rep_->text + rep_->edge_begin, rep_->edge_bytes}; }
  uint64_t src_incarnation() const { return rep_->src_incarnation; }
  uint64_t frame() const { return rep_->frame; }
  uint64_t iter() const { return rep_->iter; }
  // Whether the worker that sends, or that receives, is this one.
  bool IsFrom(absl::string_view worker) const { return IsOf(rep_->src, worker); }
  bool IsTo(absl::string_view worker) const { return IsOf(rep_->dst, worker); }
  DeviceName src() const { return NameOf(rep_->src); }
  DeviceName dst() const { return NameOf(rep_->dst); }

  // A hint that any user of the key may store on its shared text, such as an index by which it
  // finds the key sooner next time. The next user overwrites it. 0: none. REQUIRES: !empty().
  uint32_t note() const { return rep_->note.load(std::memory_order_relaxed); }
  void set_note(uint32_t note) const { rep_->note.store(note, std::memory_order_relaxed); }
  // Whether both are copies of one key, and not merely equal.
  bool SharesTextWith(const TensorKey& other) const { return rep_ == other.rep_; }

  // Whether both have the same devices and incarnation. REQUIRES: neither is empty.
  bool HasEndsOf(const TensorKey& other) const {
    return rep_->edge_begin == other.rep_->edge_begin &&
           memcmp(rep_->text, other.rep_->text, rep_->edge_begin) == 0;
  }

  // A process's own secret goes into it: a peer that chooses keys cannot choose which collide.
  uint64_t hash() const { return rep_ == nullptr ? 0 : rep_->hash; }
  friend bool operator==(const TensorKey& a, const TensorKey& b) {
    return a.rep_ == b.rep_ || (a.hash() == b.hash() && a.text() == b.text());
  }
  friend bool operator!=(const TensorKey& a, const TensorKey& b) { return !(a == b); }
  template <typename H>
  friend H AbslHashValue(H h, const TensorKey& key) {
    return H::combine(std::move(h), key.hash());
  }

 private:
  friend class TensorKeyPrefix;

  // Where a device and its components are in the text.
  struct Device {
    uint16_t begin, bytes, worker_bytes, job_bytes, type_bytes;
    int32_t replica, task, index;
  };
  // Header and text in one block of memory, because a program may keep a million keys.
  struct Rep {
    std::atomic<uint32_t> refs;
    std::atomic<uint32_t> note;
    uint64_t hash;
    uint64_t prefix_hash;
    uint64_t src_incarnation, frame, iter;
    Device src, dst;
    uint16_t text_bytes;
    bool has_room;          // For the longest suffix.
    uint16_t prefix_bytes;  // Up to and including the last ';'.
    uint16_t edge_begin, edge_bytes;
    char text[];
  };

  // By words, in place: each pull asks some times, and the names are short.
  bool IsOf(const Device& device, absl::string_view worker) const {
    const size_t bytes = worker.size();
    if (device.worker_bytes != bytes) return false;
    const char* const mine = rep_->text + device.begin;
    if (bytes < sizeof(uint64_t)) return memcmp(mine, worker.data(), bytes) == 0;
    const auto differ = [mine, &worker](size_t at) {
      uint64_t a, b;
      memcpy(&a, mine + at, sizeof(a));
      memcpy(&b, worker.data() + at, sizeof(b));
      return a != b;
    };
    for (size_t at = 0; at + sizeof(uint64_t) < bytes; at += sizeof(uint64_t)) {
      if (differ(at)) return false;
    }
    return !differ(bytes - sizeof(uint64_t));
  }
  DeviceName NameOf(const Device& device) const {
    DeviceName name;
    if (device.bytes == 0) return name;
    const char* const text = rep_->text + device.begin;
    name.worker = {text, device.worker_bytes};
    name.job = {text + kJobAt, device.job_bytes};
    name.replica = device.replica;
    name.task = device.task;
    name.type = {text + device.worker_bytes + kTypeAt, device.type_bytes};
    name.index = device.index;
    return name;
  }
  static constexpr size_t kJobAt = sizeof("/job:") - 1;
  static constexpr size_t kTypeAt = sizeof("/device:") - 1;  // After the worker.
  void SetDevice(absl::string_view text, const DeviceName& name, Device* device);

  explicit TensorKey(Rep* rep) : rep_(rep) {}
  // A Rep of `text` with `room` bytes behind the text.
  static Rep* NewRep(absl::string_view text, size_t room);
  void Unref();

  Rep* rep_ = nullptr;
};

// The first four components of a key, validated and hashed once, so that a loop only appends its
// numbers.
class TensorKeyPrefix {
 public:
  // kInvalidArgument, as TensorKey::Parse.
  static absl::StatusOr<TensorKeyPrefix> Make(absl::string_view src_device,
                                              uint64_t src_incarnation,
                                              absl::string_view dst_device, absl::string_view edge);

  // One allocation.
  TensorKey At(uint64_t frame, uint64_t iter) const;
  // Does not allocate if `*key` is the only copy of a key that came from this prefix.
  void Assign(uint64_t frame, uint64_t iter, TensorKey* key) const;

 private:
  // A key with this prefix and room for the longest suffix, which is still to be written.
  TensorKey::Rep* NewRep() const;
  static void SetSuffix(uint64_t frame, uint64_t iter, TensorKey::Rep* rep);
  explicit TensorKeyPrefix(TensorKey at_zero) : at_zero_(std::move(at_zero)) {}
  TensorKey at_zero_;  // Frame 0, iteration 0.
};

// From here on hashes are the same in every process, so that a simulation replays; and who knows
// that can make many keys of one hash. REQUIRES: no key of this process was hashed otherwise.
void FixKeyHashes();

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_TENSOR_KEY_H_
