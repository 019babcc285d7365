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

// A message on its way into a receive that the peer has announced. Its pieces are taken by
// whichever lane has room next, so that a slow lane carries less and not all wait for it.
struct PieceSource {
  // Constant from Publish() until the last piece has left.
  const uint8_t* data = nullptr;
  // A copy: NCCL may give the registration back while pieces wait to leave, when it aborts.
  std::array<uint32_t, kMaxRails> local_keys = {};
  uint64_t bytes = 0;
  uint64_t piece_bytes = 0;
  uint32_t pieces = 0;
  uint64_t remote_address = 0;
  std::array<uint32_t, kMaxRails> remote_keys = {};
  uint32_t immediate = 0;

  // Any lane's thread.
  std::atomic<uint64_t> ticket{0};  // Whose turn of this object (high half), the next piece.
  std::atomic<uint32_t> pieces_left{0};

  // REQUIRES: pieces_left is 0. Returns the turn, without which a lane takes no piece.
  uint32_t Publish();
};

// Hears of a lane, on the thread that polls it.
class LaneListener {
 public:
  virtual ~LaneListener() = default;
  virtual void OnImmediate(int lane, uint32_t immediate, uint64_t bytes) = 0;
  virtual void OnLaneBroken(int lane, const std::string& why) = 0;
};

// One queue pair of a comm. All but Offer() is for the thread that polls its queue.
class Lane {
 public:
  struct Options {
    int index = 0;
    size_t rail = 0;                  // Ours.
    uint32_t window = 16;             // Pieces under way at once,
    uint64_t window_bytes = 2 << 20;  // as long as they are no more than this and one.
    uint32_t small_sends = 0;         // Of our own beside them,
    uint32_t inline_bytes = 0;        // of which so much is taken when it is posted.
    uint32_t receives = 16;
    uint8_t port = 1;
    bool patient = false;  // The NIC moves bytes only while the peer polls: never give it up.
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

  // Writes small things, if HasRoom(), of which nobody hears that they have landed; or the one
  // that is the last piece of `source`. False: the lane is broken, which the listener knows.
  bool Write(absl::Span<SendWork> works, PieceSource* source = nullptr);
  bool HasRoom(size_t count = 1) const {  // For small things.
    return posted_end_ - posted_begin_ - in_flight_ + count <= options_.small_sends;
  }
  // Whether what has been written arrives without another Poll().
  bool AllLeft() const {
    return queue_pair_->state() == QueuePairState::kReady && !queue_pair_->sends_wait_for_poll();
  }
  void Probe();  // An empty write that the peer hears of.

  // The comm's thread: a message whose pieces this lane may take. False: no room, so others
  // must.
  bool Offer(PieceSource* source, uint32_t turn);

  // Takes what has completed on `completions`, of any of its lanes. Returns how much.
  static absl::StatusOr<size_t> Poll(CompletionQueue* completions);
  // Posts what there is room for.
  void Turn();
  bool idle() const { return in_flight_ == 0 && offered_ == taken_; }

  // For the poller's list of lanes that have been offered something.
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
  std::atomic<uint32_t> in_flight_{0};  // Pieces. Written by the lane's thread.
  uint64_t bytes_in_flight_ = 0;
  std::vector<Posted> posted_;  // A ring: sends complete in the order of posting.
  uint64_t posted_end_ = 0;
  uint64_t posted_begin_ = 0;
  uint32_t unheard_ = 0;  // Since the last send of which we hear.

  std::array<Job, kOffers> jobs_;
  alignas(64) std::atomic<uint64_t> offered_{0};  // Written by the comm's thread,
  alignas(64) std::atomic<uint64_t> taken_{0};    // and by the lane's.
};

}  // namespace tryst::nccl

#endif  // TRYST_PLUGINS_NCCL_LANE_H_
