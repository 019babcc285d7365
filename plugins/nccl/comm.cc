#include "plugins/nccl/comm.h"

#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "plugins/nccl/logger.h"

namespace tryst::nccl {
namespace {

constexpr size_t kPageBytes = 4096;
// Eager messages and announcements that may be in flight beside pieces.
constexpr uint32_t kSmallSends = 2 * kMaxRequests;
constexpr uint32_t kFirstWindow = kMaxRequests;
constexpr uint32_t kFirstReceives = 4 * kMaxRequests;
constexpr uint32_t kLaterWindow = 16;
constexpr uint32_t kLaterReceives = 64;
constexpr uint64_t kPiecesAhead = 4;
constexpr size_t kWorkersOfAComm = 4;
// The NIC copies messages up to this size when they are posted, so that NCCL may reuse its buffer
// at once. It is enough for the smallest messages that NCCL sends. A hardware NIC makes every work
// of the queue pair that much larger, so there it is smaller.
constexpr uint32_t kInlineBytes = 512 + sizeof(EagerHeader);
constexpr uint32_t kHardwareInlineBytes = 128 + sizeof(EagerHeader);
// How long a broken lane or a closed comm waits for what is still in flight: it may explain the
// break, or be all that was missing.
constexpr int64_t kPatienceNs = 400'000'000;

}  // namespace

absl::StatusOr<std::unique_ptr<Arena>> Arena::Make(Nic* nic, uint64_t bytes) {
  std::unique_ptr<Arena> arena(new Arena());
  bytes = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  arena->data_ = static_cast<uint8_t*>(aligned_alloc(kPageBytes, bytes));
  if (arena->data_ == nullptr)
    return absl::ResourceExhaustedError("out of memory for a connection");
  memset(arena->data_, 0, bytes);
  absl::StatusOr<std::unique_ptr<Region>> region =
      nic->RegisterRegion(arena->data_, bytes, kLocalWrite | kRemoteWrite);
  if (!region.ok()) return region.status();
  arena->region_ = *std::move(region);
  return arena;
}

Arena::~Arena() {
  region_.reset();
  free(data_);
}

Comm::Comm(Engine* engine, std::string device_name, std::vector<Rail*> rails, bool patient)
    : engine_(engine),
      device_name_(std::move(device_name)),
      rails_(std::move(rails)),
      patient_(patient),
      queues_(rails_.size()) {
  for (const Rail* rail : rails_) {
    most_piece_bytes_ = std::min(most_piece_bytes_, rail->nic->limits().max_message_bytes);
  }
  most_piece_bytes_ = most_piece_bytes_ / kPageBytes * kPageBytes;
}

Comm::~Comm() {
  CloseLanes();
  if (link_ != nullptr) engine_->watch->Remove(link_);
}

void Comm::CloseLanes() {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    Worker* const worker = WorkerOf(i);
    if (worker != nullptr) {
      worker->RunAndWait([this, i] { lanes_[i].reset(); });
    } else {
      lanes_[i].reset();
    }
  }
  lanes_.clear();
  queues_.clear();
}

size_t Comm::LanesWanted(const Engine& engine, size_t rails, bool patient) {
  const size_t asked = static_cast<size_t>(engine.settings.lanes);
  if (!patient) return std::min<size_t>(rails * std::max<size_t>(asked, 1), kMaxLanes);
  const size_t wanted = asked > 0 ? asked : 1 + std::min(engine.workers.size(), kWorkersOfAComm);
  return std::min<size_t>(std::max(rails, wanted), kMaxLanes);
}

// The first lane always belongs to this thread, so a small message waits for no other thread.
Worker* Comm::WorkerOf(size_t lane) const {
  if (lane == 0 || !patient_ || engine_->workers.empty()) return nullptr;
  return engine_->workers[(first_worker_ + lane - 1) % engine_->workers.size()].get();
}

absl::StatusOr<CompletionQueue*> Comm::QueueFor(size_t lane) {
  Nic* const nic = rails_[lane % rails_.size()]->nic.get();
  Worker* const worker = WorkerOf(lane);
  if (worker != nullptr) return worker->QueueFor(nic);
  std::unique_ptr<CompletionQueue>& queue = queues_[lane % rails_.size()];
  if (queue == nullptr) {
    const uint32_t depth =
        kMaxLanes * (kFirstReceives + kFirstWindow + kSmallSends + 2 * kMaxRequests);
    absl::StatusOr<std::unique_ptr<CompletionQueue>> made =
        nic->CreateCompletionQueue(std::min(depth, nic->limits().max_completion_depth));
    if (!made.ok()) return made.status();
    queue = *std::move(made);
  }
  return queue.get();
}

void Comm::OpenLanes(size_t count) {
  first_worker_ = engine_->next_worker.fetch_add(count - 1);
  lanes_.resize(count);
  addresses_.resize(count);
  pending_.store(count);
  for (size_t i = 0; i < count; ++i) {
    const auto open = [this, i] {
      const absl::StatusOr<CompletionQueue*> queue = QueueFor(i);
      if (queue.ok()) {
        OpenLane(i, *queue);
      } else {
        Fail(queue.status());
      }
      pending_.fetch_sub(1);
    };
    Worker* const worker = WorkerOf(i);
    if (worker != nullptr) {
      worker->Run(open);
    } else {
      open();
    }
  }
}

void Comm::OpenLane(size_t index, CompletionQueue* completions) {
  Lane::Options options;
  options.index = static_cast<int>(index);
  options.rail = index % rails_.size();
  options.window = index == 0 ? kFirstWindow : kLaterWindow;
  options.small_sends = index == 0 ? kSmallSends : 0;
  options.receives = index == 0 || !patient_ ? kFirstReceives : kLaterReceives;
  options.patient = patient_;
  options.window_bytes = kPiecesAhead * engine_->settings.max_piece_bytes;
  if (!patient_) {
    options.window = kFirstWindow;
    options.window_bytes = std::numeric_limits<uint64_t>::max();
  }
  Nic* const nic = rails_[options.rail]->nic.get();
  if (index == 0) {
    options.inline_bytes =
        std::min(nic->limits().max_inline_bytes, patient_ ? kInlineBytes : kHardwareInlineBytes);
    small_bytes_ =
        options.inline_bytes - std::min<uint32_t>(options.inline_bytes, sizeof(EagerHeader));
  }
  const std::vector<NicPort> ports = nic->Ports();
  if (!ports.empty()) options.port = ports[0].number;
  absl::StatusOr<std::unique_ptr<Lane>> lane = Lane::Open(options, nic, completions, this);
  if (!lane.ok()) {
    Fail(lane.status());
    return;
  }
  addresses_[index] = (*lane)->Address();
  lanes_[index] = *std::move(lane);
}

void Comm::ConnectLanes(const std::vector<std::string>& addresses,
                        const std::vector<uint8_t>& rails, bool probe) {
  while (lanes_.size() > addresses.size()) {
    const size_t last = lanes_.size() - 1;
    Worker* const worker = WorkerOf(last);
    if (worker != nullptr) {
      worker->RunAndWait([this, last] { lanes_[last].reset(); });
    }
    lanes_.pop_back();
  }
  pending_.store(lanes_.size());
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const auto connect = [this, i, address = addresses[i], rail = rails[i], probe] {
      if (lanes_[i] != nullptr) {  // Otherwise it did not open, and the comm has failed.
        const absl::Status connected = lanes_[i]->Connect(address, rail);
        if (!connected.ok()) Fail(connected);
        if (connected.ok() && probe) lanes_[i]->Probe();
      }
      pending_.fetch_sub(1);
    };
    Worker* const worker = WorkerOf(i);
    if (worker != nullptr) {
      worker->Run(connect);
    } else {
      connect();
    }
  }
}

void Comm::Watch(Fd socket, const PeerName& peer) {
  link_ = engine_->watch->Add(std::move(socket), peer);
}

void Comm::Progress() {
  for (const std::unique_ptr<CompletionQueue>& queue : queues_) {
    if (queue == nullptr) continue;
    const absl::StatusOr<size_t> polled = Lane::Poll(queue.get());
    if (!polled.ok()) Fail(polled.status());
  }
}

void Comm::OnLaneBroken(int lane, const std::string& why) {
  MutexLock lock(&mu_);
  if (broken_why_.empty()) broken_why_ = absl::StrCat("lane ", lane, ": ", why);
  broken_lanes_.fetch_add(1);
}

std::string Comm::PeerText() const {
  return link_ != nullptr ? link_->name().ToString() : "a peer that is not known yet";
}

absl::Status Comm::Health(bool wanting) {
  if (failed()) {
    BreakLanes();
    MutexLock lock(&mu_);
    return failure_;
  }
  const PeerLink::State state = link_ == nullptr ? PeerLink::State::kAlive : link_->state();
  const bool trouble = state != PeerLink::State::kAlive || broken_lanes_.load() > 0;
  if (!wanting || !trouble || !WaitedEnough(state)) return absl::OkStatus();
  std::string why;
  {
    MutexLock lock(&mu_);
    why = broken_why_;
  }
  Fail(absl::UnavailableError(
      state == PeerLink::State::kGone ? link_->why()
      : state == PeerLink::State::kClosed
          ? absl::StrCat(link_->why(), " while this rank waited for it")
          : absl::StrCat("the connection with ", PeerText(), " broke: ", why)));
  return Health(wanting);
}

// What a peer had sent when it closed or died still comes: a lane ends right after its last byte,
// and where none ends, bytes that come restart the wait. A time in which nobody looked counts for
// little, because nothing was moved in it.
bool Comm::WaitedEnough(PeerLink::State state) {
  const bool ended = state != PeerLink::State::kAlive;
  if (ended && broken_lanes_.load() >= lanes_.size()) {
    return std::exchange(all_ended_, true);  // The caller looks once more at what it waits for.
  }
  const int64_t now_ns = engine_->clock.NowNs();
  const bool moved = moved_.exchange(false, std::memory_order_relaxed);
  if (looked_ns_ < 0 || (ended && moved)) {
    waited_ns_ = 0;
  } else {
    waited_ns_ += std::min(now_ns - looked_ns_, kPatienceNs / 4);
  }
  looked_ns_ = now_ns;
  return waited_ns_ > kPatienceNs;
}

// NCCL frees its buffers once it knows of the failure, so nothing may write them any more.
void Comm::BreakLanes() {
  if (std::exchange(lanes_stopped_, true)) return;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const auto stop = [this, i] {
      if (lanes_[i] != nullptr) lanes_[i]->Break();
    };
    Worker* const worker = WorkerOf(i);
    if (worker != nullptr) {
      worker->RunAndWait(stop);
    } else {
      stop();
    }
  }
}

void Comm::Fail(const absl::Status& why) {
  {
    MutexLock lock(&mu_);
    if (!failure_.ok()) return;
    failure_ = why;
    failed_.store(true, std::memory_order_release);
  }
  LogWarning(absl::StrCat(device_name_, ": ", why.message()));
  if (link_ != nullptr && link_->state() == PeerLink::State::kAlive) {
    engine_->watch->TellFailure(link_, std::string(why.message()));
  }
}

Result Comm::FailureResult() const {
  MutexLock lock(&mu_);
  return ResultOf(failure_);
}

// Where workers carry the pieces, this cuts one piece for each idle worker, as a busy one would
// delay the others.
void Comm::CutIntoPieces(PieceSource* source) const {
  const Settings& settings = engine_->settings;
  uint64_t ways = lanes_.size();
  if (WorkersCarry()) {
    ways = static_cast<uint64_t>(std::count_if(lanes_.begin() + 1, lanes_.end(),
                                               [](const auto& lane) { return lane->idle(); }));
    ways = std::max<uint64_t>(ways, 1);
  }
  uint64_t piece = std::max((source->bytes + ways - 1) / ways, settings.piece_bytes);
  if (patient_) piece = std::min(piece, settings.max_piece_bytes);
  piece = std::max(piece, source->bytes / Immediate::kMaxPieces + 1);
  piece = (piece + kPageBytes - 1) / kPageBytes * kPageBytes;
  source->piece_bytes = std::min(piece, most_piece_bytes_);
  source->pieces = static_cast<uint32_t>(
      std::max<uint64_t>(1, (source->bytes + source->piece_bytes - 1) / source->piece_bytes));
}

void Comm::Offer(PieceSource* source) {
  const uint32_t turn = source->Publish();
  // A small message goes by the first lane, so that no worker has to be woken.
  const bool small = source->bytes < engine_->settings.piece_bytes;
  const bool offered = small            ? lanes_[0]->Offer(source, turn)
                       : WorkersCarry() ? OfferToWorkers(source, turn)
                                        : OfferInTurn(source, turn);
  // If no worker has room for the offer, this thread sends the message.
  if (!offered && !lanes_[0]->Offer(source, turn)) {
    return Fail(absl::ResourceExhaustedError(absl::StrCat(
        "more messages are under way to ", PeerText(), " than NCCL ever has at one time")));
  }
  lanes_[0]->Turn();
}

bool Comm::OfferInTurn(PieceSource* source, uint32_t turn) {
  const size_t some = std::min<size_t>(source->pieces, lanes_.size());
  bool offered = false;
  for (size_t i = 0; i < some; ++i) {
    Lane* const lane = lanes_[(next_lane_ + i) % lanes_.size()].get();
    if (!lane->Offer(source, turn)) continue;
    offered = true;
    lane->Turn();
  }
  next_lane_ = (next_lane_ + some) % lanes_.size();
  return offered;
}

// Offers first to idle workers, in order, so that the same ones stay awake. If they are too few,
// the busy ones get the offer as well, and the first with room takes the piece.
bool Comm::OfferToWorkers(PieceSource* source, uint32_t turn) {
  uint32_t offers = 0;
  uint32_t busy = 0;
  for (size_t i = 1; i < lanes_.size() && offers < source->pieces; ++i) {
    if (!lanes_[i]->idle()) {
      busy |= 1u << i;
    } else if (lanes_[i]->Offer(source, turn)) {
      ++offers;
      WorkerOf(i)->Ring(lanes_[i].get());
    }
  }
  const bool enough = offers >= source->pieces;
  for (size_t i = 1; i < lanes_.size() && !enough; ++i) {
    if ((busy >> i & 1) == 0 || !lanes_[i]->Offer(source, turn)) continue;
    ++offers;
    WorkerOf(i)->Ring(lanes_[i].get());
  }
  return offers > 0;
}

}  // namespace tryst::nccl
