// Version 1 of the C interface: selections, groups and regions.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "channel/trace/json_text.h"
#include "rendezvous/byte_box.h"
#include "rendezvous/fetch_group.h"
#include "rendezvous/selected_landing.h"
#include "rendezvous/selection.h"
#include "rendezvous/span_digests.h"
#include "server/c/handles.h"
#include "server/c/operations.h"
#include "server/c/tryst_v1.h"
#include "server/regions/region.h"
#include "server/regions/region_fetch.h"

using tryst::c::Give;
using tryst::c::GiveText;
using tryst::c::RefuseNull;
using tryst::c::Text;
using tryst::c::Timeout;

constexpr std::chrono::microseconds kFenceComesSoon(50);

static_assert(sizeof(tryst_span) == sizeof(tryst::ByteSpan) &&
              offsetof(tryst_span, bytes) == offsetof(tryst::ByteSpan, bytes));
static_assert(sizeof(tryst_run) == sizeof(tryst::ByteRun) &&
              offsetof(tryst_run, bytes) == offsetof(tryst::ByteRun, bytes) &&
              offsetof(tryst_run, stride) == offsetof(tryst::ByteRun, stride) &&
              offsetof(tryst_run, count) == offsetof(tryst::ByteRun, count));

// What the last cancel has led to. Fences that come after the handle was freed find it.
struct tryst_group {
  struct Fence {
    tryst::Mutex mu;
    tryst::CondVar changed;
    std::optional<tryst::FenceReport> report ABSL_GUARDED_BY(mu);
    std::atomic<bool> told{false};  // There is a report.
  };

  static const tryst::Clock* clock() {
    static const auto* const clock = new tryst::SteadyClock;
    return clock;
  }

  tryst::FetchGroup group{clock()};
  const std::shared_ptr<Fence> fence = std::make_shared<Fence>();
  const int forks = tryst::ForkCount();
};

struct tryst_region {
  std::unique_ptr<tryst::Region> region;
  const int forks = tryst::ForkCount();
};

namespace {

// From so many bytes on they are copied on the server's threads, so that the poller goes on.
constexpr uint64_t kMostOnPoller = 256 << 10;

template <typename T>
absl::Span<const T> ItemsOf(const tryst_selection& selection) {
  return {static_cast<const T*>(selection.items), selection.count};
}

// A selection of the caller's lists, or of the runs of his boxes.
class ReadSelection {
 public:
  absl::Status Read(const tryst_selection* selection);
  const tryst::Selection& get() const { return selection_; }

 private:
  absl::Status ReadBoxes(absl::Span<const tryst_box> boxes);

  std::vector<tryst::ByteRun> runs_;
  tryst::Selection selection_;
};

absl::Status ReadSelection::Read(const tryst_selection* selection) {
  if (selection == nullptr) return absl::OkStatus();
  if (selection->reserved != 0) {
    return absl::InvalidArgumentError("a selection's field `reserved` must be 0");
  }
  if (selection->items == nullptr && selection->count > 0) {
    return absl::InvalidArgumentError("a selection has a count and no items");
  }
  switch (selection->kind) {
    case TRYST_SELECT_WHOLE:
      return absl::OkStatus();
    case TRYST_SELECT_INDICES:
      selection_ = tryst::Selection::Indices(ItemsOf<uint32_t>(*selection), selection->unit);
      return absl::OkStatus();
    case TRYST_SELECT_RUNS:
      selection_ = tryst::Selection::Runs(ItemsOf<tryst::ByteRun>(*selection));
      return absl::OkStatus();
    case TRYST_SELECT_SPANS:
      selection_ = tryst::Selection::Spans(ItemsOf<tryst::ByteSpan>(*selection));
      return absl::OkStatus();
    case TRYST_SELECT_BOXES:
      return ReadBoxes(ItemsOf<tryst_box>(*selection));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no kind ", selection->kind, " of selection (TRYST_SELECT_...)"));
}

absl::Status ReadSelection::ReadBoxes(absl::Span<const tryst_box> boxes) {
  for (const tryst_box& box : boxes) {
    if (box.rank > 0 && (box.extent == nullptr || box.strides == nullptr)) {
      return absl::InvalidArgumentError("a box has dimensions and no extent or strides");
    }
    const auto runs = tryst::RunsOfBox(
        {box.offset, box.element_bytes, {box.extent, box.rank}, {box.strides, box.rank}});
    if (!runs.ok()) return runs.status();
    if (runs->size() + runs_.size() > tryst::Selection::kMaxSpans) {
      return absl::InvalidArgumentError("the boxes have too many runs: select in several calls");
    }
    runs_.insert(runs_.end(), runs->begin(), runs->end());
  }
  selection_ = tryst::Selection::Runs(runs_);
  return absl::OkStatus();
}

// What an operation that has finished knows of its spans.
size_t CopyNumbers(const tryst_op* op, const std::vector<uint32_t> tryst::GatherResult::*which,
                   uint32_t* numbers, size_t max) {
  if (op == nullptr || op->gathered == nullptr || !op->Usable().ok() || !op->end.ended()) return 0;
  const std::vector<uint32_t>& all = (*op->gathered).*which;
  if (numbers != nullptr) std::copy_n(all.begin(), std::min(max, all.size()), numbers);
  return all.size();
}

// The key of a region ends with '|', which the caller need not write.
absl::StatusOr<tryst::TensorKey> RegionKey(const tryst::TensorKey& key) {
  if (key.edge().back() == '|') return key;
  return key.WithEdge(absl::StrCat(key.edge(), "|"));
}

}  // namespace

tryst_status* tryst_send_selected(tryst_server* server, int64_t step, const char* key,
                                  const tryst_tensor* tensor, const tryst_selection* selection,
                                  const tryst_options* options) {
  if (tryst_status* const refused = RefuseNull(server, tensor)) return refused;
  ReadSelection selected;
  absl::Status read = selected.Read(selection);
  if (!read.ok()) return Give(read);
  const auto parsed = tryst::TensorKey::Parse(Text(key));
  if (!parsed.ok()) return Give(parsed.status());
  const auto rendezvous = server->Step(step);
  if (!rendezvous.ok()) return Give(rendezvous.status());
  tryst::SendArgs args;
  const absl::Status added =
      tryst::c::AddOptions(server, options, TRYST_SEND_DIGESTS, &args.device_context);
  if (!added.ok()) return Give(added);
  args.digests = options != nullptr && (options->flags & TRYST_SEND_DIGESTS) != 0;
  return Give((*rendezvous)->SendSelected(*parsed, args, tensor->tensor, selected.get()));
}

tryst_status* tryst_gather_start(tryst_server* server, int64_t step, const char* key,
                                 const tryst_selection* wanted, const tryst_tensor* into,
                                 const tryst_selection* landing, const tryst_options* options,
                                 int64_t timeout_ms, tryst_group* group, tryst_queue* queue,
                                 void* tag, tryst_op** op) {
  if (tryst_status* const refused = RefuseNull(server, into, op)) return refused;
  *op = nullptr;
  ReadSelection lands, comes;
  absl::Status read = lands.Read(landing);
  if (read.ok()) read = comes.Read(wanted);
  if (!read.ok()) return Give(read);
  const auto rendezvous = server->Step(step);
  if (!rendezvous.ok()) return Give(rendezvous.status());
  tryst::RecvArgs args;
  const absl::Status added = tryst::c::AddOptions(
      server, options, TRYST_RECV_DIGESTS | TRYST_RECV_PARTIAL, &args.device_context);
  if (!added.ok()) return Give(added);
  const uint32_t flags = options == nullptr ? 0 : options->flags;
  auto receive = tryst::c::Receive::Make(server->server.get(), step, key, into);
  if (!receive.ok()) return Give(receive.status());
  auto full = wanted == nullptr ? receive->key : RegionKey(receive->key);
  if (!full.ok()) return Give(full.status());
  args.destination = into->tensor;
  if (timeout_ms >= 0) {
    args.deadline = tryst::Deadline::After(tryst::SteadyClock(), Timeout(timeout_ms));
  }
  const auto checked =
      CheckSelection(lands.get(), args.destination.bytes(), tryst::SelectionUse::kRead);
  const uint64_t bytes = checked.value_or(0);
  // A fetch from a region copies there by itself, and a cancel ends it where that is called.
  if (wanted == nullptr && bytes > kMostOnPoller && args.destination.on_host()) {
    args.executor = server->server->executor();
  }
  *op = new tryst_op(queue, tag, (*rendezvous)->TurnsFor(*full));
  (*op)->items = std::vector<tryst_op::Item>(1);
  (*op)->gathered = std::make_unique<tryst::GatherResult>();
  tryst::SelectedLanding into_spans(lands.get());
  into_spans.digests = (flags & TRYST_RECV_DIGESTS) != 0;
  into_spans.partial = (flags & TRYST_RECV_PARTIAL) != 0;
  into_spans.result = (*op)->gathered.get();
  if (checked.ok()) tryst::NoneIsThere(into_spans);
  const auto start = [&](const tryst::RecvArgs& own, tryst::DoneFn done) {
    if (wanted == nullptr) {
      return (*rendezvous)->RecvSelectedAsync(*full, own, into_spans, std::move(done));
    }
    tryst::FetchRegion(server->server.get(), step, *full, comes.get(), own, into_spans,
                       std::move(done));
  };
  (*op)->StartOne(std::move(args), [&](const tryst::RecvArgs& own, tryst::DoneFn done) {
    if (group == nullptr) return start(own, std::move(done));
    group->group.Start(full->src().worker, bytes, own, std::move(done), start);
  });
  return nullptr;
}

size_t tryst_op_failed_spans(const tryst_op* op, uint32_t* spans, size_t max) {
  return CopyNumbers(op, &tryst::GatherResult::failed, spans, max);
}

size_t tryst_op_span_digests(const tryst_op* op, uint32_t* digests, size_t max) {
  return CopyNumbers(op, &tryst::GatherResult::digests, digests, max);
}

tryst_status* tryst_group_create(tryst_group** group) {
  if (tryst_status* const refused = RefuseNull(group)) return refused;
  *group = new tryst_group;
  return nullptr;
}

void tryst_group_cancel(tryst_group* group) {
  if (group == nullptr || !tryst::c::InTheProcessOf(group->forks).ok()) return;
  group->group.StartCancel([fence = group->fence](const tryst::FenceReport& report) {
    tryst::MutexLock lock(&fence->mu);
    fence->report = report;
    fence->told.store(true, std::memory_order_release);
    fence->changed.NotifyAll();
  });
}

int tryst_group_fenced(tryst_group* group, int64_t timeout_ms) {
  if (group == nullptr || !tryst::c::InTheProcessOf(group->forks).ok()) return 1;
  const int64_t year_ms = int64_t{365} * 24 * 3600 * 1000;
  const auto until =
      std::chrono::steady_clock::now() +
      std::chrono::milliseconds(timeout_ms < 0 ? year_ms : std::min(timeout_ms, year_ms));
  tryst_group::Fence* const fence = group->fence.get();
  // A copy under way ends within some ten microseconds, and to wake a sleeper takes as long.
  const auto awake_until = std::min(until, std::chrono::steady_clock::now() + kFenceComesSoon);
  while (!fence->told.load(std::memory_order_acquire) &&
         std::chrono::steady_clock::now() < awake_until) {
    std::this_thread::yield();
  }
  tryst::MutexLock lock(&fence->mu);
  while (!fence->report.has_value()) {
    if (fence->changed.WaitUntil(&fence->mu, until)) return fence->report.has_value() ? 1 : 0;
  }
  return 1;
}

size_t tryst_group_under_way(const tryst_group* group) {
  return group == nullptr ? 0 : group->group.under_way();
}

char* tryst_group_report_json(const tryst_group* group) {
  if (group == nullptr) return nullptr;
  tryst::MutexLock lock(&group->fence->mu);
  if (!group->fence->report.has_value()) return nullptr;
  const tryst::FenceReport& report = *group->fence->report;
  return GiveText(absl::StrCat("{\"ended_ok\":", report.ended_ok,
                               ",\"cancelled\":", report.cancelled, ",\"failed\":", report.failed,
                               ",\"bytes_landed\":", report.bytes_landed,
                               ",\"slowest_peer\":", tryst::JsonText(report.slowest_peer),
                               ",\"waited_ns\":", report.waited_ns, "}"));
}

void tryst_group_free(tryst_group* group) {
  if (group != nullptr && tryst::c::InTheProcessOf(group->forks).ok()) delete group;
}

tryst_status* tryst_region_open(tryst_server* server, const char* name, const tryst_tensor* memory,
                                const char* const* readers, size_t reader_count,
                                tryst_region** region) {
  if (tryst_status* const refused = RefuseNull(server, memory, region)) return refused;
  *region = nullptr;
  const absl::Status usable = server->Usable();
  if (!usable.ok()) return Give(usable);
  tryst::RegionOptions options;
  for (size_t i = 0; readers != nullptr && i < reader_count; ++i) {
    options.readers.emplace_back(Text(readers[i]));
  }
  auto opened = tryst::Region::Open(server->server.get(), Text(name), memory->tensor, options);
  if (!opened.ok()) return Give(opened.status());
  *region = new tryst_region{*std::move(opened)};
  return nullptr;
}

int tryst_region_close(tryst_region* region, int64_t timeout_ms) {
  if (region == nullptr || !tryst::c::InTheProcessOf(region->forks).ok()) return 1;
  region->region->Close(nullptr);
  return region->region->AwaitClosed(Timeout(timeout_ms)) ? 1 : 0;
}

uint64_t tryst_region_bytes_sent(const tryst_region* region) {
  return region == nullptr ? 0 : region->region->bytes_sent();
}

void tryst_region_free(tryst_region* region) {
  if (region != nullptr && tryst::c::InTheProcessOf(region->forks).ok()) delete region;
}
