#ifndef TRYST_CHANNEL_RDMA_CONSUMERS_H_
#define TRYST_CHANNEL_RDMA_CONSUMERS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "channel/bootstrap.h"
#include "channel/rdma/rdma_options.h"
#include "channel/rdma/serve_channel.h"
#include "channel/trace/live_ops.h"
#include "channel/trace/path_view.h"
#include "channel/transport.h"

namespace tryst {

// The workers that fetch from us through one NIC. Answers their hellos, makes a channel for each,
// and gives up those that do not come back.
//
// Poller thread only. REQUIRES at destruction: drained, or no hello ever came.
class Consumers {
 public:
  // All pointers outlive it.
  Consumers(const TransportContext* context, const NicPath* path, const RdmaOptions* options);

  void OnHello(QueueHub* hub, const Hello& hello, HelloDone done);
  // A worker has a new incarnation: ends the channels of its earlier ones.
  void NotePeer(const std::string& worker, uint64_t incarnation);
  // Call it now and then: ends the channels of workers that are gone.
  void Maintain();

  void Close(const absl::Status& why);
  bool Drained() const;

  // Explains the consumer `peer`, or all of them if `peer` is empty.
  void Explain(const std::string& peer, std::string* out) const;
  void View(const std::string& peer, std::vector<PathView>* views) const;
  void ListOps(LiveOps* ops) const;
  ServeCounters counters() const;

 private:
  using Channels = std::vector<std::unique_ptr<ServeChannel>>;

  // Ends the channels for which `is_over` returns true, with `why`.
  template <typename IsOver>
  void End(IsOver is_over, const absl::Status& why);
  ServeChannel* Find(const Hello& hello) const;
  std::unique_ptr<ServeChannel> Make(QueueHub* hub, const Hello& hello);
  void AnswerFarewell(const Hello& hello, HelloDone done);

  const TransportContext* const context_;
  const NicPath* const path_;
  const RdmaOptions* const options_;
  uint64_t next_session_;  // Counts from a random number.
  Channels serving_;
  Channels closing_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_CONSUMERS_H_
