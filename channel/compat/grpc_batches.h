#ifndef TRYST_CHANNEL_COMPAT_GRPC_BATCHES_H_
#define TRYST_CHANNEL_COMPAT_GRPC_BATCHES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "channel/compat/fetch_stream.h"
#include "channel/compat/fetch_wire.h"
#include "channel/compat/grpc_channel.h"
#include "channel/poller/member_timer.h"

namespace tryst {

// The requests that a GrpcChannel makes in batches, without a call for each: small tensors, which
// come as parcels in the answer, and receives beyond max_asked. One call waits for all of them; it
// ends when the producer has something, and the next one begins.
class GrpcChannel::Batches {
 public:
  explicit Batches(GrpcChannel* channel) : channel_(channel) {}

  // The producer was replaced. The next batch will show whether it takes batches.
  void OnNewPeer() {
    taken_ = true;
    parcel_bytes_ = 0;
  }
  // What came of a fetch.
  void NoteTensor(const rpc::FetchHeader& header);
  uint64_t asked_incarnation() const { return asked_incarnation_; }
  size_t waiting() const { return waiting_; }

  // It is small, as far as can be told, and others are under way already.
  bool Suits(const FetchOp& op) const;
  // Whether the producer takes batches, as far as is known, and there is room for one more.
  bool MayAdd() const;
  void Add(FetchOp* op);          // Asks for it in the next batch.
  void Left();                    // A receive that waited in a batch has ended,
  void Fetched() { --waiting_; }  // or its tensor is there and it has a call of its own now.
  void Send();                    // Sends what is to be asked for.
  // Sends a batch that asks for nothing, and that every producer answers at once, unless one is out
  // already. False: none is, since the peer takes no batches or has no address.
  bool AskForWord();
  void EndAskForWord();  // It is not awaited any more.
  void Close();

 private:
  // What one call asks for.
  struct Batch {
    explicit Batch(uint64_t max_bytes) : incoming(Tensor(), max_bytes) {}
    IncomingTensor incoming;
    struct Ask {
      uint64_t serial;
      bool may_be_known;  // Whether it was so before this batch.
    };
    std::vector<Ask> asks;
    bool is_word = false;  // It is AskForWord()'s.
  };

  FetchStream* Start(const std::shared_ptr<Batch>& batch,
                     const std::shared_ptr<grpc::Channel>& channel, rpc::FetchRequest* request,
                     const std::vector<uint64_t>& left);
  void OnLanded(Batch* batch, FetchStream* stream);
  void OnEnded(Batch* batch, FetchStream* stream);
  void TakeParcel(const rpc::FetchParcel& parcel);
  void OnOtherLife(Batch* batch);
  void Retry(Batch* batch, const absl::Status& why);
  void AskAgain(Batch* batch);
  void Leave();
  void OnTimer();

  GrpcChannel* const channel_;
  bool taken_ = true;
  size_t waiting_ = 0;  // Receives in kToPark, kParked and kReady.
  // The serials of receives in kToPark. Others among them are skipped.
  std::deque<uint64_t> to_park_;
  absl::flat_hash_set<FetchStream*> streams_;
  FetchStream* word_stream_ = nullptr;  // AskForWord() started it; it is in streams_, too.
  uint64_t asked_incarnation_ = 0;      // The incarnation that was asked; 0: any.
  uint64_t heard_ = 0;
  uint64_t parcel_bytes_ = 0;  // The most that one holds; 0: the producer is not known to send any.
  int small_in_turn_ = 0;      // How many of the last tensors were small, one after the other.
  int64_t failing_since_ns_ = 0;
  int attempts_ = 0;
  bool backs_off_ = false;
  MemberTimer<Batches> timer_{this, &Batches::OnTimer};
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_COMPAT_GRPC_BATCHES_H_
