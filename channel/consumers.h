#ifndef TRYST_CHANNEL_CONSUMERS_H_
#define TRYST_CHANNEL_CONSUMERS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "channel/bootstrap.h"
#include "channel/channel_pool_options.h"
#include "channel/live_ops.h"
#include "channel/path_view.h"
#include "channel/rail.h"
#include "channel/rdma/serve_channel.h"
#include "rendezvous/tensor_source.h"

namespace tryst {

// The workers that fetch from us through NICs: answers their hellos, with a channel for
// each worker and path, and gives up those that do not come back.
//
// Poller thread only. REQUIRES at destruction: drained, or never said hello to.
class Consumers {
 public:
  // All pointers outlive it. Sessions are numbered from after `session`.
  Consumers(const ChannelPoolOptions* options, const Rails* rails, TensorSource* source,
            uint64_t session);

  // REQUIRES: the protocol version is one of ours.
  void OnHello(const Hello& hello, HelloDone done);
  // Once a while: ends who is gone.
  void Maintain();

  void Close(const absl::Status& why);
  bool Drained() const;

  // Those of `peer`; all where it is empty.
  void Explain(const std::string& peer, std::string* out) const;
  void View(const std::string& peer, std::vector<PathView>* views) const;
  void ListOps(LiveOps* ops) const;
  ServeCounters counters() const;

 private:
  using Channels = std::vector<std::unique_ptr<ServeChannel>>;

  // Ends what `is_over` says, for `why`.
  template <typename IsOver>
  void End(IsOver is_over, const absl::Status& why);
  ServeChannel* Find(const Hello& hello) const;
  std::unique_ptr<ServeChannel> Make(Rail* rail, const Hello& hello);
  void AnswerFarewell(const Hello& hello, HelloDone done);

  const ChannelPoolOptions* const options_;
  const Rails* const rails_;
  TensorSource* const source_;
  uint64_t next_session_;
  Channels serving_;
  Channels closing_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_CONSUMERS_H_
