#ifndef TRYST_PLUGINS_NCCL_LANE_H_
#define TRYST_PLUGINS_NCCL_LANE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/nccl/memory.h"
#include "plugins/nccl/wire.h"
#include "verbs/nic.h"

namespace tryst::nccl {

// A message on its way into a receive that the peer has announced. Whichever lane has room takes
// the next piece, so a slow lane carries less and does not delay the others.
struct PieceSource {
  // Constant from Publish() until the last piece has been sent.
  const uint8_t* data = nullptr;
  // Copies of the keys: when NCCL aborts, it may deregister the memory while pieces still wait.
  std::array<uint32_t, kMaxRails> local_keys = {};
  uint64_t bytes = 0;
  uint64_t piece_bytes = 0;
  uint32_t pieces = 0;
  uint64_t remote_address = 0;
  std::array<uint32_t, kMaxRails> remote_keys = {};
  uint32_t immediate = 0;

  // Any lane's thread uses these.
  // High half: the turn, which counts uses of this object. Low half: the next piece.
  std::atomic<uint64_t> ticket{0};
  std::atomic<uint32_t> pieces_left{0};

  // Starts a new turn and returns its number, which lanes need to take pieces. REQUIRES:
  // pieces_left is 0.
  uint32_t Publish();
};

// Gets a lane's events, on the thread that polls the lane.
class LaneListener {
 public:
  virtual ~LaneListener() = default;
  virtual void OnImmediate(int lane, uint32_t immediate, uint64_t bytes) = 0;
  virtual void OnLaneBroken(int lane, const std::string& why) = 0;  // Once for each lane.
  virtual void OnMoved() = 0;                                       // Something has completed.
};

// One queue pair of a comm. Only the thread that polls its queue calls it, except Offer().
class Lane {
 public:
  struct Options {
    int index = 0;
    size_t rail = 0;                  // Our rail.
    uint32_t window = 16;             // The most pieces in flight,
    uint64_t window_bytes = 2 << 20;  // and the most bytes of theirs. One piece may exceed it.
    uint32_t small_sends = 0;         // The most small messages of our own in flight besides.
    uint32_t inline_bytes = 0;        // Messages up to this size are copied when they are posted.
    uint32_t receives = 16;
    uint8_t port = 1;
    // The NIC moves bytes only while the peer polls, so never give the peer up.
    bool patient = false;
  };

  static absl::StatusOr<std::unique_ptr<Lane>> Open(const Options& options, Nic* nic,
                                                    CompletionQueue* completions,
                                                    LaneListener* listener);

  int index() const { return options_.index; }
  size_t rail() const { return options_.rail; }
  size_t remote_rail() const { return remote_rail_; }
  std::string Address() const { return queue_pair_->LocalAddress(); }
  absl::Status Connect(const std::string& address, size_t remote_rail);
  void Break() { queue_pair_->Break(); }

  // Writes small messages, if HasRoom(); nothing reports that they have landed. Or writes the last
  // piece of `source`. False: the lane is broken, and the listener has been told.
  bool Write(absl::Span<SendWork> works, PieceSource* source = nullptr);
  bool HasRoom(size_t count = 1) const {  // For small messages.
    return posted_end_ - posted_begin_ - in_flight_ + count <= options_.small_sends;
  }
  // Whether what was written will arrive without another Poll().
  bool AllLeft() const {
    return queue_pair_->state() == QueuePairState::kReady && !queue_pair_->sends_wait_for_poll();
  }
  void Probe();  // Sends an empty write, whose immediate the peer gets.

  // Offers a message to this lane, on the comm's thread. False: there is no room, so another lane
  // must take it.
  bool Offer(PieceSource* source, uint32_t turn);

  // Handles what has completed on `completions`, for all lanes of that queue. Returns how many.
  static absl::StatusOr<size_t> Poll(CompletionQueue* completions);
  // Posts pieces and receives as far as there is room.
  void Turn();
  bool idle() const { return in_flight_ == 0 && offered_ == taken_; }

  // A worker's list of the lanes that were offered something.
  std::atomic<bool> rung{false};
  Lane* next_rung = nullptr;

 private:
  static constexpr uint32_t kOffers = 256;
  struct Job {
    PieceSource* source = nullptr;
    uint32_t turn = 0;
    uint32_t pieces = 0;
  };
  static constexpr uint32_t kUnheardSends = 16;
  enum class Sent : uint8_t { kUnheard, kSmall, kPiece };
  struct Posted {
    Sent what = Sent::kSmall;
    PieceSource* source = nullptr;
    uint64_t bytes = 0;
  };

  Lane(const Options& options, LaneListener* listener);
  absl::Status PostReceives(uint32_t count);
  void OnCompletion(const Completion& completion);
  bool TakePiece(const Job& job, uint32_t* piece);
  bool PostPiece(PieceSource* source, uint32_t piece);
  bool Post(absl::Span<const SendWork> works, const Posted& posted);
  void Broken(const std::string& why);

  const Options options_;
  LaneListener* const listener_;
  std::unique_ptr<QueuePair> queue_pair_;
  size_t remote_rail_ = 0;
  bool broken_ = false;
  uint32_t receives_owed_ = 0;
  std::atomic<uint32_t> in_flight_{0};  // Pieces. The lane's thread writes it.
  uint64_t bytes_in_flight_ = 0;
  std::vector<Posted> posted_;  // A ring, because sends complete in the order of posting.
  uint64_t posted_end_ = 0;
  uint64_t posted_begin_ = 0;
  uint32_t unheard_ = 0;  // Sends since the last signaled one.

  std::array<Job, kOffers> jobs_;
  alignas(64) std::atomic<uint64_t> offered_{0};  // The comm's thread writes it.
  alignas(64) std::atomic<uint64_t> taken_{0};    // The lane's thread writes it.
};

}  // namespace tryst::nccl

#endif  // TRYST_PLUGINS_NCCL_LANE_H_
