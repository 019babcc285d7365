#ifndef TRYST_CHANNEL_GRPC_GRPC_BATCHES_H_
#define TRYST_CHANNEL_GRPC_GRPC_BATCHES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "channel/grpc/fetch_stream.h"
#include "channel/grpc/fetch_wire.h"
#include "channel/grpc/grpc_channel.h"
#include "channel/poller/member_timer.h"

namespace tryst {

// What a GrpcChannel asks for in batches: receives beyond max_asked wait at the producer without a
// call of their own. One call waits for all of them; it ends when the producer has something, and
// the next one begins.
class GrpcChannel::Batches {
 public:
  explicit Batches(GrpcChannel* channel) : channel_(channel) {}

  // The producer is another one, of this release or another: it will say.
  void OnNewPeer() { taken_ = true; }
  uint64_t asked_incarnation() const { return asked_incarnation_; }
  size_t waiting() const { return waiting_; }

  // The producer takes batches, as far as is known, and not too many wait.
  bool MayAdd() const;
  void Add(FetchOp* op);          // It goes with the next batch.
  void Left();                    // One that waited in a batch is over,
  void Fetched() { --waiting_; }  // or is there, and has a call of its own now.
  void Send();                    // What is to be asked.
  void Close();

 private:
  // What one call asks for.
  struct Batch {
    explicit Batch(uint64_t max_bytes) : incoming(Tensor(), max_bytes) {}
    IncomingTensor incoming;
    struct Ask {
      uint64_t serial;
      bool may_be_known;  // From before.
    };
    std::vector<Ask> asks;
  };

  void OnLanded(Batch* batch, FetchStream* stream);
  void OnEnded(Batch* batch, FetchStream* stream);
  void OnOtherLife(Batch* batch);
  void Retry(Batch* batch, const absl::Status& why);
  void AskAgain(Batch* batch);
  void Leave();
  void OnTimer();

  GrpcChannel* const channel_;
  bool taken_ = true;
  size_t waiting_ = 0;            // kToPark, kParked, kReady.
  std::deque<uint64_t> to_park_;  // Serials in kToPark; and others, passed over.
  absl::flat_hash_set<FetchStream*> streams_;
  uint64_t asked_incarnation_ = 0;  // Who was asked; 0: whoever is there.
  uint64_t heard_ = 0;
  int64_t failing_since_ns_ = 0;
  int attempts_ = 0;
  bool backs_off_ = false;
  MemberTimer<Batches> timer_{this, &Batches::OnTimer};
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_GRPC_BATCHES_H_
