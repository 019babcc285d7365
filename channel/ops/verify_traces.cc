#include "channel/ops/verify_traces.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/printable.h"
#include "channel/ops/fetch_table.h"
#include "rendezvous/tensor_key.h"

namespace tryst {
namespace {

// With more operations under way than that, a worker may not have listed all.
constexpr size_t kMostUnderWay = 256;
constexpr char kGrpc[] = "grpc";  // The path whose fetches have states of their own.

// ---- What may follow what ----

using Follows = std::array<std::array<bool, kWaitsForCount>, kWaitsForCount>;

// What a fetch is traced to wait for from this transition on; kNothing: as before.
WaitsFor WordOf(FetchEvent event, const FetchRow& row) {
  if (row.next == FetchState::kEnding) return WaitsFor::kExecutor;
  switch (row.action) {
    case FetchAction::kCancel:
      return WaitsFor::kLastWord;
    case FetchAction::kLineUp:
      return WaitsFor::kSlot;
    case FetchAction::kAskAgain:
      return event == FetchEvent::kBroken ? WaitsFor::kDrain : WaitsFor::kConnection;
    default:
      break;
  }
  switch (event) {
    case FetchEvent::kAsk:
      return WaitsFor::kPeerSend;
    case FetchEvent::kNoRoom:
      return WaitsFor::kLandingRoom;
    case FetchEvent::kLanded:
      return row.next == FetchState::kParts ? WaitsFor::kParts : WaitsFor::kNothing;
    case FetchEvent::kCopy:
      return WaitsFor::kCopy;
    default:
      return WaitsFor::kNothing;
  }
}

// Goes from the beginnings through all states of a fetch, each with each word that it can have.
class WordGraph {
 public:
  static Follows Make() {
    WordGraph graph;
    graph.Reach(FetchState::kQueued, WaitsFor::kSlot);
    graph.Reach(FetchState::kQueued, WaitsFor::kConnection);
    graph.Explore();
    // A fetch that finds its tensor asked for ahead, in whatever state that is, begins there.
    for (size_t state = 0; state < kFetchStateCount; ++state) {
      graph.Reach(static_cast<FetchState>(state), WaitsFor::kPeerSend);
    }
    graph.Explore();
    graph.follows_[Index(WaitsFor::kConnection)][Index(WaitsFor::kSlot)] = true;
    return graph.follows_;
  }

 private:
  static size_t Index(WaitsFor what) { return static_cast<size_t>(what); }

  void Reach(FetchState state, WaitsFor word) {
    if (!seen_.emplace(state, word).second) return;
    todo_.emplace_back(state, word);
  }
  void Step(WaitsFor word, FetchState next, WaitsFor then) {
    if (then != word) follows_[Index(word)][Index(then)] = true;
    Reach(next, then);
  }

  void Explore() {
    while (!todo_.empty()) {
      const auto [state, word] = todo_.back();
      todo_.pop_back();
      if (state == FetchState::kFree || state == FetchState::kEnding) continue;
      for (size_t i = 0; i < kFetchEventCount; ++i) {
        const auto event = static_cast<FetchEvent>(i);
        const FetchRow* row = FindFetchRow(state, event);
        if (row == nullptr) continue;
        const WaitsFor then = WordOf(event, *row);
        Step(word, row->next, then == WaitsFor::kNothing ? word : then);
        // The fetch ends, and the next one of its key, which waits in line, takes its place.
        if (event == FetchEvent::kHandOver) {
          Step(word, FetchState::kEnding, WaitsFor::kExecutor);
          Step(WaitsFor::kSlot, state, word);
          Step(WaitsFor::kConnection, state, word);
        }
      }
      // Its caller is answered before the peer's last word or the drain, and then it goes on.
      if (state == FetchState::kLeaving || state == FetchState::kLeft ||
          state == FetchState::kFencedLeaving) {
        Step(word, state, WaitsFor::kExecutor);
      }
    }
  }

  std::set<std::pair<FetchState, WaitsFor>> seen_;
  std::vector<std::pair<FetchState, WaitsFor>> todo_;
  Follows follows_{};
};

const Follows& FetchFollows() {
  static const Follows& follows = *new Follows(WordGraph::Make());
  return follows;
}

Follows MakeFollows(std::initializer_list<std::pair<WaitsFor, WaitsFor>> pairs) {
  Follows follows{};
  for (const auto& [before, after] : pairs) {
    follows[static_cast<size_t>(before)][static_cast<size_t>(after)] = true;
  }
  return follows;
}

const Follows& GrpcFetchFollows() {
  using W = WaitsFor;
  static const Follows& follows = *new Follows(MakeFollows({{W::kSlot, W::kPeerSend},
                                                            {W::kSlot, W::kRetry},
                                                            {W::kPeerSend, W::kRetry},
                                                            {W::kPeerSend, W::kCopy},
                                                            {W::kRetry, W::kPeerSend},
                                                            {W::kRetry, W::kCopy}}));
  return follows;
}

// A producer's slot: what a request may find, and what it may become.
const Follows& ServeFollows() {
  using W = WaitsFor;
  static const Follows& follows = *new Follows(MakeFollows({{W::kLocalSend, W::kWireRoom},
                                                            {W::kWireRoom, W::kAcceptance},
                                                            {W::kWireRoom, W::kDestination},
                                                            {W::kWireRoom, W::kCopy},
                                                            {W::kCopy, W::kAcceptance},
                                                            {W::kCopy, W::kConsumer},
                                                            {W::kDestination, W::kWireRoom},
                                                            {W::kAcceptance, W::kWireRoom},
                                                            {W::kWireRoom, W::kConsumer},
                                                            {W::kDestination, W::kConsumer},
                                                            {W::kAcceptance, W::kConsumer},
                                                            {W::kConsumer, W::kWireRoom}}));
  return follows;
}

const Follows& GrpcServeFollows() {
  using W = WaitsFor;
  static const Follows& follows = *new Follows(MakeFollows({{W::kLocalSend, W::kAcceptance},
                                                            {W::kLocalSend, W::kCopy},
                                                            {W::kLocalSend, W::kConsumer},
                                                            {W::kCopy, W::kAcceptance},
                                                            {W::kCopy, W::kConsumer},
                                                            {W::kCopy, W::kLocalSend},
                                                            {W::kAcceptance, W::kConsumer},
                                                            {W::kConsumer, W::kAcceptance},
                                                            {W::kConsumer, W::kLocalSend}}));
  return follows;
}

// ---- One end of an operation ----

struct End {
  const TraceDump* dump = nullptr;
  const TraceRecord* record = nullptr;

  const TraceDump::Track& track() const { return dump->tracks[record->track]; }
  bool fetches() const { return track().role == TraceRole::kFetch; }
  bool by_grpc() const { return track().path == kGrpc; }
  bool ended() const { return record->end_ns != 0; }
  bool ok() const { return ended() && record->code == absl::StatusCode::kOk; }
  // By the reader's clock.
  int64_t At(int64_t its_ns) const { return its_ns - dump->ahead_ns; }
  int64_t began_ns() const { return At(record->span.began_ns()); }
  int64_t end_ns() const { return At(ended() ? record->end_ns : dump->now_ns); }
  int64_t last_ns() const { return At(record->span.since_ns()); }
  // Since when it first waited for `what`; never: -1.
  int64_t Since(WaitsFor what) const {
    for (size_t i = 0; i < record->span.count(); ++i) {
      if (record->span.stamp(i).what == what) return At(record->span.stamp(i).at_ns);
    }
    return -1;
  }
  std::string Text() const {
    return absl::StrCat("step ", record->step, ": ", Printable(dump->worker),
                        fetches() ? " fetches from " : " serves ", Printable(track().peer), " by ",
                        Printable(track().path), ", ", Printable(record->key));
  }
};

// Whether both are the same record, read twice.
bool Same(const End& a, const End& b) {
  if (a.dump->clock == b.dump->clock) return a.began_ns() == b.began_ns();
  if (!a.ended() || !b.ended()) return true;
  const TraceSpan& one = a.record->span;
  const TraceSpan& other = b.record->span;
  if (one.count() != other.count() ||
      a.record->end_ns - one.began_ns() != b.record->end_ns - other.began_ns()) {
    return false;
  }
  for (size_t i = 0; i < one.count(); ++i) {
    if (one.stamp(i).what != other.stamp(i).what ||
        one.stamp(i).at_ns - one.began_ns() != other.stamp(i).at_ns - other.began_ns()) {
      return false;
    }
  }
  return true;
}

class Verifier {
 public:
  Verifier(absl::Span<const TraceDump> dumps, int64_t turn_ns) : dumps_(dumps), turn_ns_(turn_ns) {}

  TraceVerdict Run() && {
    for (const TraceDump& dump : dumps_) {
      for (const TraceRecord& record : dump.records) Add({&dump, &record});
    }
    for (auto& [id, ends] : by_id_) Match(&ends);
    JudgeOrder();
    std::stable_sort(verdict_.breaches.begin(), verdict_.breaches.end(),
                     [](const TraceBreach& a, const TraceBreach& b) {
                       return std::tie(a.clock, a.at_ns) < std::tie(b.clock, b.at_ns);
                     });
    return std::move(verdict_);
  }

 private:
  struct Ends {
    std::vector<End> fetches;
    std::vector<End> serves;
  };

  void Breach(const End& end, int64_t at_ns, const std::string& why) {
    verdict_.breaches.push_back({at_ns, end.dump->clock, absl::StrCat(end.Text(), ": ", why)});
  }

  void Add(const End& end) {
    ++verdict_.operations;
    if (!end.ended()) ++verdict_.under_way;
    JudgeAlone(end);
    const uint64_t id = end.record->id;
    if (id == 0) return;  // It ended before the peer heard of it.
    Ends& ends = by_id_[id];
    std::vector<End>& mine = end.fetches() ? ends.fetches : ends.serves;
    for (End& known : mine) {
      if (known.dump->worker != end.dump->worker ||
          known.dump->incarnation != end.dump->incarnation) {
        continue;
      }
      if (Same(known, end)) {
        --verdict_.operations;
        if (!end.ended() || !known.ended()) --verdict_.under_way;
        if (end.ended()) known = end;
        return;
      }
      // A slot's generations begin anew after so many uses, but never while one is under way.
      if (known.dump->clock == end.dump->clock && end.began_ns() < known.end_ns() &&
          known.began_ns() < end.end_ns()) {
        Breach(end, end.end_ns(), "it has ended twice");
      }
    }
    mine.push_back(end);
  }

  // ---- What one end says ----

  void JudgeAlone(const End& end) {
    const TraceSpan& span = end.record->span;
    if (span.count() == 0) return Breach(end, end.began_ns(), "it never waited for anything");
    if (!MayBegin(end)) {
      Breach(end, end.began_ns(),
             absl::StrCat("it begins to wait for ", WaitsForText(span.stamp(0).what)));
    }
    for (size_t i = 1; i < span.count(); ++i) {
      const TraceSpan::Stamp before = span.stamp(i - 1);
      const TraceSpan::Stamp after = span.stamp(i);
      if (after.at_ns < before.at_ns) {
        Breach(end, end.At(before.at_ns),
               absl::StrCat("it waits for ", WaitsForText(after.what), " before it has waited for ",
                            WaitsForText(before.what)));
      }
      const bool gap = i + 1 == span.count() && span.lost() > 0;
      if (!gap && !Follow(end, before.what, after.what)) {
        Breach(end, end.At(after.at_ns),
               absl::StrCat("it waits for ", WaitsForText(after.what), " after ",
                            WaitsForText(before.what), ", which no table allows"));
      }
    }
    if (!end.ended()) return;
    if (end.end_ns() < end.last_ns()) {
      Breach(end, end.last_ns(), "it ends before it has waited for the last thing");
    }
    if (end.ok() && !MayEndWell(end)) {
      Breach(end, end.end_ns(),
             absl::StrCat("it ends well while it waits for ", WaitsForText(span.waits_for())));
    }
  }

  static bool MayBegin(const End& end) {
    const WaitsFor first = end.record->span.stamp(0).what;
    if (!end.fetches()) return first == WaitsFor::kLocalSend || (!end.ended() && !end.by_grpc());
    return first == WaitsFor::kSlot || first == WaitsFor::kPeerSend ||
           (first == WaitsFor::kConnection && !end.by_grpc());
  }

  static bool Follow(const End& end, WaitsFor before, WaitsFor after) {
    const Follows& follows = end.fetches()   ? end.by_grpc() ? GrpcFetchFollows() : FetchFollows()
                               : end.by_grpc() ? GrpcServeFollows()
                                             : ServeFollows();
    return follows[static_cast<size_t>(before)][static_cast<size_t>(after)];
  }

  static bool MayEndWell(const End& end) {
    const WaitsFor last = end.record->span.waits_for();
    if (!end.fetches()) return last == WaitsFor::kAcceptance || last == WaitsFor::kConsumer;
    if (!end.by_grpc()) return last == WaitsFor::kExecutor;
    return last == WaitsFor::kPeerSend || last == WaitsFor::kCopy;
  }

  // ---- What both say ----

  void Match(Ends* ends) {
    std::vector<bool> used(ends->serves.size());
    for (const End& fetch : ends->fetches) {
      const size_t at = PartnerOf(fetch, ends->serves, used);
      if (at == ends->serves.size()) {
        ++verdict_.alone;
        JudgeMissing(fetch);
        continue;
      }
      used[at] = true;
      ++verdict_.pairs;
      JudgePair(fetch, ends->serves[at]);
    }
    verdict_.alone += static_cast<size_t>(std::count(used.begin(), used.end(), false));
  }

  // Several serves have one id where the producer let go of the first, as when the consumer left
  // the path and came back, and as generations begin anew: the last that began before the fetch
  // ended is the one that served it.
  static size_t PartnerOf(const End& fetch, const std::vector<End>& serves,
                          const std::vector<bool>& used) {
    size_t best = serves.size();
    for (size_t i = 0; i < serves.size(); ++i) {
      if (used[i]) continue;
      const bool one_clock = serves[i].dump->clock == fetch.dump->clock;
      const bool first = best == serves.size();
      if (first || (one_clock && IsNearer(fetch, serves[i], serves[best]))) best = i;
    }
    return best;
  }

  static bool IsNearer(const End& fetch, const End& one, const End& other) {
    const bool one_before = one.began_ns() <= fetch.end_ns();
    if (one_before != (other.began_ns() <= fetch.end_ns())) return one_before;
    return one_before == (one.began_ns() > other.began_ns());
  }

  void JudgePair(const End& fetch, const End& serve) {
    const TraceRecord& asked = *fetch.record;
    const TraceRecord& served = *serve.record;
    if (serve.dump->worker != fetch.track().peer || fetch.dump->worker != serve.track().peer) {
      return Breach(fetch, fetch.began_ns(),
                    absl::StrCat(Printable(serve.dump->worker), " says that it serves this to ",
                                 Printable(serve.track().peer)));
    }
    if (asked.key != served.key || asked.step != served.step) {
      return Breach(fetch, fetch.began_ns(),
                    absl::StrCat("the producer serves step ", served.step, ", ",
                                 Printable(served.key), " for it"));
    }
    JudgeEnds(fetch, serve);
    if (fetch.dump->clock == serve.dump->clock) JudgeTimes(fetch, serve);
    if (fetch.ok() && serve.ok()) delivered_[KeyOf(fetch)].push_back({fetch, serve});
  }

  void JudgeEnds(const End& fetch, const End& serve) {
    if (!fetch.ended() || !serve.ended()) return;
    const absl::StatusCode got = fetch.record->code;
    const absl::StatusCode sent = serve.record->code;
    const auto name = [](absl::StatusCode code) { return absl::StatusCodeToString(code); };
    if (fetch.ok() && !serve.ok()) {
      return Breach(fetch, fetch.end_ns(),
                    absl::StrCat("it has got its tensor, and its producer's end is ", name(sent),
                                 ": the next fetch may get it once more"));
    }
    if (fetch.ok() && fetch.record->bytes != serve.record->bytes) {
      Breach(fetch, fetch.end_ns(),
             absl::StrCat("it has got ", fetch.record->bytes, " bytes of ", serve.record->bytes));
    }
    // These take nothing along: what was on its way to them goes back.
    const bool gave_up =
        got == absl::StatusCode::kCancelled || got == absl::StatusCode::kDeadlineExceeded;
    // A consumer of which nothing is known at the producer's end may have died in between.
    const bool knows = fetch.dump->clock != serve.dump->clock ||
                       serve.end_ns() <= fetch.dump->now_ns - fetch.dump->ahead_ns;
    if (serve.ok() && gave_up && knows) {
      Breach(fetch, fetch.end_ns(),
             absl::StrCat("it has ended with ", name(got),
                          ", and its producer holds the tensor for accepted: it is lost"));
    }
    // It may have ended by itself first, or with its peer or its step, or because what came is
    // broken.
    const bool says_why = !serve.ok() && sent != absl::StatusCode::kCancelled;
    const bool by_itself = gave_up || got == absl::StatusCode::kUnavailable ||
                           got == absl::StatusCode::kAborted || got == absl::StatusCode::kDataLoss;
    if (says_why && got != sent && !by_itself) {
      Breach(fetch, fetch.end_ns(),
             absl::StrCat("its producer says ", name(sent), ", and it ends with ", name(got)));
    }
  }

  void JudgeTimes(const End& fetch, const End& serve) {
    const int64_t error_ns = fetch.dump->ahead_error_ns + serve.dump->ahead_error_ns + turn_ns_;
    if (!fetch.ok()) return;
    const int64_t sent_ns = serve.Since(WaitsFor::kAcceptance);
    const int64_t came_ns = fetch.by_grpc() ? fetch.end_ns() : fetch.last_ns();
    if (sent_ns >= 0 && fetch.end_ns() + error_ns < sent_ns) {
      Breach(fetch, fetch.end_ns(),
             absl::StrFormat("it has its tensor %.3f ms before that was sent",
                             static_cast<double>(sent_ns - fetch.end_ns()) / 1e6));
    }
    if (serve.ok() && serve.end_ns() + error_ns < came_ns) {
      Breach(serve, serve.end_ns(),
             absl::StrFormat("it is accepted %.3f ms before it came",
                             static_cast<double>(came_ns - serve.end_ns()) / 1e6));
    }
  }

  // A fetch that got a tensor from somebody who never had it.
  void JudgeMissing(const End& fetch) {
    if (!fetch.ok()) return;
    const auto key = TensorKey::Parse(fetch.record->key);
    if (!key.ok()) return;  // It was cut.
    for (const TraceDump& dump : dumps_) {
      if (dump.worker != fetch.track().peer || dump.incarnation != key->src_incarnation() ||
          dump.clock != fetch.dump->clock || !IsComplete(dump)) {
        continue;
      }
      const int64_t error_ns = dump.ahead_error_ns + fetch.dump->ahead_error_ns + turn_ns_;
      if (fetch.end_ns() + error_ns < dump.now_ns - dump.ahead_ns) {
        Breach(fetch, fetch.end_ns(), "it has got a tensor that its producer has never served");
      }
    }
  }

  // Whether it has every operation that has ever ended, and every one under way: of those a worker
  // lists the oldest alone.
  static bool IsComplete(const TraceDump& dump) {
    const auto ended = std::count_if(dump.records.begin(), dump.records.end(),
                                     [](const TraceRecord& record) { return record.end_ns != 0; });
    return dump.counts.passed_over == 0 && dump.counts.overwritten == 0 &&
           static_cast<uint64_t>(ended) >= dump.counts.ended &&
           dump.records.size() - static_cast<size_t>(ended) < kMostUnderWay;
  }

  // ---- Tensors of one key ----

  using Key = std::tuple<int, std::string, uint64_t, std::string, int64_t>;
  static Key KeyOf(const End& fetch) {
    return {fetch.dump->clock, fetch.dump->worker, fetch.dump->incarnation, fetch.record->key,
            fetch.record->step};
  }

  // Each end's times are of its own clock, so their order has no error. Those of one turn are
  // equal.
  void JudgeOrder() {
    for (auto& [key, pairs] : delivered_) {
      std::stable_sort(pairs.begin(), pairs.end(), [](const auto& a, const auto& b) {
        return a.second.Since(WaitsFor::kAcceptance) < b.second.Since(WaitsFor::kAcceptance);
      });
      for (size_t i = 1; i < pairs.size(); ++i) {
        const auto& [first, sent_first] = pairs[i - 1];
        const auto& [second, sent_second] = pairs[i];
        // Over gRPC several requests are out at once, and are answered in any order.
        if (first.by_grpc() || second.by_grpc()) continue;
        // Its tensor may have been sent again, later than the record says.
        if (sent_first.record->span.lost() > 0 || first.record->span.lost() > 0) continue;
        const bool apart =
            sent_first.Since(WaitsFor::kAcceptance) < sent_second.Since(WaitsFor::kAcceptance);
        if (apart && second.last_ns() < first.last_ns() && !SentAgain(sent_first)) {
          Breach(second, second.last_ns(), "it has come before a tensor that was sent earlier");
        }
      }
    }
  }

  static bool SentAgain(const End& serve) {
    int times = 0;
    for (size_t i = 0; i < serve.record->span.count(); ++i) {
      const WaitsFor what = serve.record->span.stamp(i).what;
      times += what == WaitsFor::kAcceptance || what == WaitsFor::kConsumer;
    }
    return times > 1;
  }

  const absl::Span<const TraceDump> dumps_;
  const int64_t turn_ns_;
  TraceVerdict verdict_;
  absl::flat_hash_map<uint64_t, Ends> by_id_;
  std::map<Key, std::vector<std::pair<End, End>>> delivered_;
};

}  // namespace

TraceVerdict VerifyTraces(absl::Span<const TraceDump> dumps, int64_t turn_ns) {
  return Verifier(dumps, turn_ns).Run();
}

bool MayFollow(WaitsFor before, WaitsFor after) {
  return FetchFollows()[static_cast<size_t>(before)][static_cast<size_t>(after)];
}

}  // namespace tryst
