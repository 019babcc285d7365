#include "channel/grpc/hello_wire.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "channel/signing/caller.h"
#include "proto/transport.pb.h"

namespace tryst {
namespace {

constexpr size_t kMaxNameBytes = 512;
// Release 0.2.0 has no such paths: it refuses them, and goes on by calls, as a session cannot.
constexpr char kPathPrefix[] = "link/";
constexpr int kMaxQueuePairs = 256;
constexpr size_t kMaxQueuePairBytes = 4096;
constexpr size_t kMaxParameterBytes = 64 * 1024;

absl::Status TooLong(absl::string_view field, size_t is, size_t limit) {
  return absl::InvalidArgumentError(absl::StrCat("a hello is malformed: ", field, " has ", is,
                                                 ", and at most ", limit, " are allowed"));
}

}  // namespace

void HelloToProto(const Hello& hello, rpc::HelloRequest* out) {
  out->set_protocol_oldest(hello.protocol_oldest);
  out->set_protocol_newest(hello.protocol_newest);
  out->set_worker(hello.worker);
  out->set_incarnation(hello.incarnation);
  out->set_started_us(static_cast<uint64_t>(hello.started_us));
  out->set_epoch(hello.epoch);
  out->set_path(absl::StrCat(kPathPrefix, hello.path));
  out->set_probes(hello.probes);
  for (const std::string& queue_pair : hello.queue_pairs) out->add_queue_pairs(queue_pair);
  out->set_parameters(hello.parameters);
}

absl::StatusOr<Hello> HelloFromProto(const rpc::HelloRequest& in) {
  if (in.worker().size() > kMaxNameBytes) {
    return TooLong("worker (bytes)", in.worker().size(), kMaxNameBytes);
  }
  if (in.path().size() > kMaxNameBytes) {
    return TooLong("path (bytes)", in.path().size(), kMaxNameBytes);
  }
  if (in.queue_pairs_size() > kMaxQueuePairs) {
    return TooLong("queue_pairs", static_cast<size_t>(in.queue_pairs_size()), kMaxQueuePairs);
  }
  if (in.parameters().size() > kMaxParameterBytes) {
    return TooLong("parameters (bytes)", in.parameters().size(), kMaxParameterBytes);
  }
  Hello hello;
  hello.protocol_oldest = in.protocol_oldest();
  hello.protocol_newest = in.protocol_newest();
  hello.worker = in.worker();
  hello.incarnation = in.incarnation();
  hello.started_us = static_cast<int64_t>(in.started_us());
  hello.epoch = in.epoch();
  hello.path = std::string(absl::StripPrefix(in.path(), kPathPrefix));
  hello.probes = in.probes();
  for (const std::string& queue_pair : in.queue_pairs()) {
    if (queue_pair.size() > kMaxQueuePairBytes) {
      return TooLong("a queue pair (bytes)", queue_pair.size(), kMaxQueuePairBytes);
    }
    hello.queue_pairs.push_back(queue_pair);
  }
  hello.parameters = in.parameters();
  return hello;
}

std::string HelloAnswerMac(absl::string_view token, absl::string_view statement,
                           const rpc::HelloRequest& answer) {
  return Mac(token, {"tryst answer 1", statement, answer.SerializeAsString()});
}

}  // namespace tryst
