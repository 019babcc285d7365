#include "channel/trace/trace.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"

namespace tryst {
namespace {

constexpr size_t kMaxTracks = 4096;

struct Words {
  absl::string_view name;
  absl::string_view text;
};
constexpr Words kWaitsForWords[] = {
    {"nothing", "nothing"},
    {"connection", "a connection"},
    {"slot", "a request slot"},
    {"peer_send", "the producer's Send"},
    {"landing_room", "landing room"},
    {"parts", "parts on other queue pairs"},
    {"last_word", "the producer's last word"},
    {"drain", "a broken queue pair to drain"},
    {"retry", "the next attempt"},
    {"copy", "a copy"},
    {"executor", "its executor"},
    {"local_send", "the local Send"},
    {"wire_room", "room on the wire"},
    {"destination", "the consumer's destination"},
    {"completion", "the NIC's completion"},
    {"acceptance", "the consumer's acceptance"},
    {"consumer", "the consumer to come back"},
};
static_assert(sizeof(kWaitsForWords) / sizeof(kWaitsForWords[0]) == kWaitsForCount,
              "each has its words");

}  // namespace

absl::string_view WaitsForName(WaitsFor what) {
  return kWaitsForWords[static_cast<size_t>(what)].name;
}

absl::string_view WaitsForText(WaitsFor what) {
  return kWaitsForWords[static_cast<size_t>(what)].text;
}

uint64_t TraceTrack::BucketBeginNs(size_t i) {
  constexpr size_t kOfOneDoubling = size_t{1} << kBucketBits;
  if (i < kOfOneDoubling) return uint64_t{i} << kFinestShift;
  return (kOfOneDoubling + i % kOfOneDoubling) << (i / kOfOneDoubling - 1 + kFinestShift);
}

TraceTrack::Buckets* TraceTrack::NewBuckets() {
  Buckets* const made = new Buckets{};
  took_.store(made, std::memory_order_release);
  return made;
}

double TraceTrack::Counts::QuantileNs(double quantile) const {
  uint64_t all = 0;
  for (uint64_t count : took) all += count;
  uint64_t seen = 0;
  for (size_t i = 0; i < took.size(); ++i) {
    seen += took[i];
    if (seen == 0 || static_cast<double>(seen) < quantile * static_cast<double>(all)) continue;
    const auto begin_ns = static_cast<double>(BucketBeginNs(i));
    if (i + 1 == took.size()) return begin_ns;
    return (begin_ns + static_cast<double>(BucketBeginNs(i + 1))) / 2;
  }
  return 0;
}

uint64_t TraceTrack::Counts::TookLessThan(uint64_t ns) const {
  uint64_t sum = 0;
  for (size_t i = 0; i < took.size() && BucketBeginNs(i) < ns; ++i) sum += took[i];
  return sum;
}

TraceTrack::Counts TraceTrack::counts() const {
  const auto read = [](const Counter& counter) { return counter.load(std::memory_order_relaxed); };
  Counts counts;
  counts.ended_ok = read(ended_ok_);
  counts.ended_failed = read(ended_failed_);
  counts.bytes = read(bytes_);
  counts.total_ns = read(total_ns_);
  const Buckets* const took = took_.load(std::memory_order_acquire);
  if (took != nullptr) std::transform(took->begin(), took->end(), counts.took.begin(), read);
  std::transform(waited_ns_.begin(), waited_ns_.end(), counts.waited_ns.begin(), read);
  return counts;
}

Trace::Trace(TraceOptions options) : options_(options), slots_(new Slot[options.records]) {
  TRYST_CHECK(options_.records > 0 && options_.sample_every > 0);
  MutexLock lock(&mu_);
  tracks_.emplace_back(TraceRole::kFetch, "", options_.name, uint16_t{0});
}

TraceTrack* Trace::Track(TraceRole role, const std::string& peer, const std::string& path) {
  MutexLock lock(&mu_);
  for (TraceTrack& track : tracks_) {
    if (track.role == role && track.peer == peer && track.path == path) return &track;
  }
  if (tracks_.size() == kMaxTracks) return &tracks_.front();
  tracks_.emplace_back(role, peer, path, static_cast<uint16_t>(tracks_.size()));
  return &tracks_.back();
}

std::vector<const TraceTrack*> Trace::Tracks() const {
  MutexLock lock(&mu_);
  std::vector<const TraceTrack*> tracks;
  for (const TraceTrack& track : tracks_) tracks.push_back(&track);
  return tracks;
}

// ---- Writing ----

inline void Trace::Count(const TraceSpan& span, TraceTrack* track, uint64_t bytes,
                         absl::StatusCode code, int64_t now_ns) {
  const int64_t took_ns = std::max<int64_t>(now_ns - span.began_ns(), 0);
  TraceTrack::Add(code == absl::StatusCode::kOk ? &track->ended_ok_ : &track->ended_failed_, 1);
  TraceTrack::Add(&track->bytes_, bytes);
  TraceTrack::Add(&track->total_ns_, static_cast<uint64_t>(took_ns));
  TraceTrack::Buckets* took = track->took_.load(std::memory_order_relaxed);
  if (took == nullptr) took = track->NewBuckets();
  TraceTrack::Add(&(*took)[TraceTrack::BucketOf(static_cast<uint64_t>(took_ns))], 1);
  uint64_t until = static_cast<uint64_t>(took_ns);  // All since it began.
  for (size_t i = span.count_; i-- > 0;) {
    const uint64_t from = span.stamps_[i] & TraceSpan::kDeltaMask;
    // All stamps of one turn are the same.
    if (until > from) TraceTrack::Add(&track->waited_ns_[span.stamps_[i] >> 56], until - from);
    until = from;
  }
}

void Trace::End(const TraceSpan& span, TraceTrack* track, int64_t step, const TensorKey& key,
                uint64_t bytes, absl::StatusCode code, int64_t now_ns) {
  Count(span, track, bytes, code, now_ns);
  // The id is the same at both ends, so both keep the same ones. Half of it takes half the time to
  // divide.
  const bool keep = code != absl::StatusCode::kOk || now_ns - span.began_ns() >= options_.slow_ns ||
                    static_cast<uint32_t>(span.id) % options_.sample_every == 0;
  if (!keep) return TraceTrack::Add(&passed_over_, 1);
  const uint64_t number = written_.load(std::memory_order_relaxed);
  Slot* slot = &slots_[number % options_.records];
  begun_.store(number + 1, std::memory_order_relaxed);
  // Each release store keeps begun_ before it (a reader may see the new begun_ too early,
  // never too late); on x86 it is a plain store.
  const auto put = [slot](size_t i, uint64_t value) {
    slot->words[i].store(value, std::memory_order_release);
  };
  put(0, span.id);
  put(1, static_cast<uint64_t>(step));
  put(2, key.hash());
  put(3, static_cast<uint64_t>(span.began_ns()));
  put(4, static_cast<uint64_t>(now_ns));
  put(5, bytes);
  put(6, uint64_t{track->index} | uint64_t{span.count_} << 16 | uint64_t{span.lost_} << 32 |
             static_cast<uint64_t>(code) << 48);
  for (size_t i = 0; i < span.count(); ++i) put(7 + i, span.stamps_[i]);
  PutText(key, slot);
  written_.store(number + 1, std::memory_order_release);
}

// `bytes`: of kTextBytes. Returns how many it takes.
size_t Trace::CutKey(absl::string_view whole, char* bytes) {
  if (whole.size() <= kTextBytes) {
    if (!whole.empty()) memcpy(bytes, whole.data(), whole.size());
    return whole.size();
  }
  // The devices are at the beginning, the edge's own part and the loop at the end.
  constexpr size_t kHalf = kTextBytes / 2;
  memcpy(bytes, whole.data(), kHalf);
  memcpy(bytes + kHalf, whole.data() + whole.size() - kHalf, kHalf);
  memcpy(bytes + kHalf - 3, "...", 3);
  return kTextBytes;
}

std::string Trace::CutKey(absl::string_view whole) {
  char bytes[kTextBytes];
  const size_t size = CutKey(whole, bytes);
  return std::string(bytes, size);
}

void Trace::PutText(const TensorKey& key, Slot* slot) {
  char bytes[kTextBytes + sizeof(uint64_t)];
  const size_t size = CutKey(key.text(), bytes);
  memset(bytes + size, 0, sizeof(uint64_t));
  slot->words[kHeadWords - 1].store(size, std::memory_order_release);
  for (size_t i = 0; i * sizeof(uint64_t) < size; ++i) {
    uint64_t word;
    memcpy(&word, bytes + i * sizeof(word), sizeof(word));
    slot->words[kHeadWords + i].store(word, std::memory_order_release);
  }
}

// ---- Reading ----

TraceRecord Trace::Parse(const uint64_t* words) {
  TraceRecord record;
  record.id = record.span.id = words[0];
  record.step = static_cast<int64_t>(words[1]);
  record.key_hash = words[2];
  record.span.began_ns_ = static_cast<int64_t>(words[3]);
  record.end_ns = static_cast<int64_t>(words[4]);
  record.bytes = words[5];
  record.track = static_cast<uint16_t>(words[6]);
  record.span.count_ = static_cast<uint16_t>(words[6] >> 16);
  record.span.lost_ = static_cast<uint16_t>(words[6] >> 32);
  record.code = static_cast<absl::StatusCode>(words[6] >> 48);
  std::copy_n(words + 7, TraceSpan::kStamps, record.span.stamps_.begin());
  record.key.assign(reinterpret_cast<const char*>(words + kHeadWords), words[kHeadWords - 1]);
  return record;
}

std::vector<TraceRecord> Trace::Records() const {
  const uint64_t end = written_.load(std::memory_order_acquire);
  const uint64_t begin = end > options_.records ? end - options_.records : 0;
  std::vector<TraceRecord> records;
  records.reserve(end - begin);
  for (uint64_t number = begin; number < end; ++number) {
    uint64_t words[kHeadWords + kTextWords];
    const Slot& slot = slots_[number % options_.records];
    for (size_t i = 0; i < kHeadWords + kTextWords; ++i) {
      words[i] = slot.words[i].load(std::memory_order_acquire);
    }
    if (begun_.load(std::memory_order_relaxed) > number + options_.records) continue;
    records.push_back(Parse(words));
  }
  return records;
}

Trace::Counts Trace::counts() const {
  Counts counts;
  counts.passed_over = passed_over_.load(std::memory_order_relaxed);
  const uint64_t written = written_.load(std::memory_order_relaxed);
  counts.kept = std::min<uint64_t>(written, options_.records);
  counts.overwritten = written - counts.kept;
  counts.ended = written + counts.passed_over;
  return counts;
}

}  // namespace tryst
