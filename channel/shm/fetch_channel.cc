#include "channel/shm/fetch_channel.h"

#include "channel/shm/asleep_flag.h"

// The turns of a ShmFetchChannel, and the memory of its fetches. fetch_connection.cc has the
// connection.
namespace tryst {

using shm_wire::ReplyCell;

absl::Status ShmFetchChannel::MayFill(const Tensor& destination) const {
  if (!destination.valid() || destination.on_host()) return absl::OkStatus();
  return absl::UnimplementedError(
      "a receive over shared memory cannot write device memory: receive into host memory");
}

void ShmFetchChannel::OnWaits(FetchOp* op) {
  if (AwaitPeer(asks_.live() == 1 && op->ask->front == op)) link_.FlushSoon();
}

void ShmFetchChannel::DropMemory(FetchAsk* ask) { ShmAsk::Of(ask)->DropTensor(); }

void ShmFetchChannel::OnLeaves(FetchAsk* ask, FetchState from) {
  if (from == FetchState::kCopying) receiver_.StopCopy(ShmAsk::Of(ask));
  DropMemory(ask);
}

uint64_t ShmFetchChannel::BytesOf(const FetchAsk& ask) const {
  return ask.state == FetchState::kCopying ? ShmAsk::Of(ask).bytes : 0;
}

// ---- Turns ----

int ShmFetchChannel::ReadCells(int most) {
  int cells = 0;
  for (; cells < most && open() && link_.replies.Ready(); ++cells) {
    ReplyCell cell;
    link_.replies.Take(reinterpret_cast<uint8_t*>(&cell), shm_wire::kIsLongAt);
    const absl::Status understood = receiver_.OnCell(cell);
    if (!understood.ok()) {
      NoteMisanswered(cell);
      BreakLink(understood);
    }
  }
  return cells;
}

// What the producer answered before its end is in the ring and counts. Its own memory may be that
// of another process now.
void ShmFetchChannel::ReadRest() {
  (void)ReadCells(kCellsAfterEnd);
  while (open() && receiver_.copies()) {
    if (receiver_.pulls_next()) {
      receiver_.ForgetNextCopy();
    } else {
      (void)receiver_.RunCopy();
    }
  }
}

bool ShmFetchChannel::PollLink() {
  if (!open()) return false;
  const int cells = ReadCells(kCellsPerTurn);
  if (!open()) return true;  // A callback may have closed us, too.
  const bool copied = receiver_.copies();
  if (copied) {
    const absl::Status good = receiver_.RunCopy();
    if (!good.ok()) {  // The session has ended.
      ReadRest();
      Break(good, /*life_over=*/true);
    }
    if (!open()) return true;
  }
  // A producer may wait for the room in its ring, and we may have waited for some in ours.
  if (cells > 0 || SomebodyWaits() || HasWords() || !link_.words.empty()) link_.FlushSoon();
  return cells > 0 || copied;
}

// Asked again, it may be answered better; but not for ever.
void ShmFetchChannel::NoteMisanswered(const ReplyCell& cell) {
  if (connector_.state() != State::kOpen || cell.head.slot >= slots_.size()) return;
  ShmAsk* ask = ShmAsk::Of(slots_.at(cell.head.slot));
  if (ask != nullptr) ++ask->misanswered;
}

// At the end of a turn: says what there is to say, and wakes a producer that sleeps.
void ShmFetchChannel::Flush() {
  if (!open()) return;
  if (probing_) HearWords();
  if (link_.SayWords()) SayAll();
  link_.WakeProducer();
}

void ShmFetchChannel::FallAsleep() {
  const bool waits = !link_.words.empty() || HasWords() || SomebodyWaits();
  AsleepFlag(&link_.held->view().header->consumer_asleep)
      .Raise(waits ? shm_wire::kForRoomToo : shm_wire::kForMessages);
}

bool ShmFetchChannel::WakeUp() {
  const bool woken = AsleepFlag(&link_.held->view().header->consumer_asleep).Lower();
  if (woken) HearPacket();
  return woken;
}

}  // namespace tryst
