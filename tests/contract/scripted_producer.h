#ifndef TRYST_TESTS_CONTRACT_SCRIPTED_PRODUCER_H_
#define TRYST_TESTS_CONTRACT_SCRIPTED_PRODUCER_H_

#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "channel/compat/grpc_channel.h"
#include "channel/grpc/event_thread.h"
#include "channel/grpc/peer_directory.h"
#include "channel/poller/poller.h"
#include "channel/signing/caller.h"
#include "gtest/gtest.h"
#include "proto/transport.pb.h"
#include "rendezvous/rendezvous.h"
#include "tests/contract/fetch_host.h"

namespace tryst {

inline constexpr uint64_t kScriptedIncarnation = 0xab;

// What an honest producer says in every answer.
rpc::FetchHeader ScriptedHeader();
Tensor OneFloat(float value);

class ScriptedProducer;

// One call of a consumer, which the test answers.
class HeldCall final : public grpc::ServerGenericBidiReactor {
 public:
  explicit HeldCall(ScriptedProducer* producer) : producer_(producer) { StartRead(&buffer_); }

  const rpc::FetchRequest& request() const { return request_; }
  // Sends one message, or none, and ends the call. Once.
  void Answer(const grpc::Status& status, const grpc::ByteBuffer* message = nullptr);
  void Answer(const rpc::FetchHeader& header);
  // Sends the first message of a tensor of `bytes` bytes, and nothing more.
  void BeginTensor(uint64_t bytes);
  // Sends all of `tensor`, of which `offset` bytes arrived before.
  void AnswerTensor(const Tensor& tensor);

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool) override {
    if (!begins_.exchange(false)) Finish(status_);
  }
  void OnCancel() override;
  void OnDone() override { delete this; }

  ScriptedProducer* const producer_;
  grpc::ByteBuffer buffer_;
  rpc::FetchRequest request_;
  grpc::Status status_;
  std::atomic<bool> answered_{false};
  std::atomic<bool> begins_{false};
};

// Hands its calls to the test, in the order in which their requests arrived. Unless it is silent,
// it answers by itself whether it is there. It takes notes of what has ended.
class ScriptedProducer final : public grpc::CallbackGenericService, public PeerDirectory {
 public:
  ScriptedProducer();
  ~ScriptedProducer() override;

  // Call `number`, from 0. Null: it does not come. An answer that ends it destroys it.
  HeldCall* AwaitCall(size_t number);
  size_t calls();
  rpc::FetchRequest RequestOf(size_t number);  // REQUIRES: number < calls().
  void BeSilent();
  // How often consumers asked this producer whether it is there.
  size_t questions();
  // What the consumer has said had ended, without asking for anything.
  std::vector<rpc::FetchRequest> notes();
  // How many of its calls the consumer has cancelled.
  size_t cancels();
  int port() const { return port_; }
  // From now on, calls go there.
  void MoveTo(std::shared_ptr<grpc::Channel> channel) { channel_ = std::move(channel); }
  // From now on notes fail.
  void LoseNotes();
  // While it has none, nobody can call it.
  void HaveAddress(bool has_address) { has_address_ = has_address; }
  // From now on every call ends with this, at once, unless it is OK. Returns how many had come.
  size_t RefuseAll(const grpc::Status& status);

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new HeldCall(this);
  }
  absl::StatusOr<std::shared_ptr<grpc::Channel>> ChannelTo(absl::string_view) override {
    if (!has_address_) return absl::UnavailableError("the producer has no address");
    return channel_;
  }

 private:
  friend class HeldCall;
  void OnRequest(HeldCall* call);
  void OnCancel();

  Mutex mu_;
  CondVar changed_;
  std::vector<HeldCall*> calls_ ABSL_GUARDED_BY(mu_);
  std::vector<rpc::FetchRequest> requests_ ABSL_GUARDED_BY(mu_);  // calls_[i] made requests_[i].
  std::vector<rpc::FetchRequest> notes_ ABSL_GUARDED_BY(mu_);
  grpc::Status refusal_ ABSL_GUARDED_BY(mu_);
  bool is_silent_ ABSL_GUARDED_BY(mu_) = false;
  bool loses_notes_ ABSL_GUARDED_BY(mu_) = false;
  size_t questions_ ABSL_GUARDED_BY(mu_) = 0;
  size_t cancels_ ABSL_GUARDED_BY(mu_) = 0;
  std::atomic<bool> has_address_{true};
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

// How one receive ended.
class ReceiveEnd {
 public:
  DoneFn Done() {
    return [this](Received&& received) {
      tensor_ = std::move(received.tensor);
      promise_.set_value(std::move(received.status));
    };
  }
  // kUnknown: it has not ended.
  absl::Status Await();
  bool ended() const {
    return future_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  const Tensor& tensor() const { return tensor_; }

 private:
  Tensor tensor_;
  std::promise<absl::Status> promise_;
  std::future<absl::Status> future_ = promise_.get_future();
};

// A GrpcChannel to a ScriptedProducer.
class ScriptedProducerTest : public ::testing::Test {
 protected:
  using End = ReceiveEnd;
  // Null: time passes by itself. The clock outlives the test.
  explicit ScriptedProducerTest(const Clock* clock = nullptr)
      : poller_(clock == nullptr ? &clock_ : clock) {}
  ~ScriptedProducerTest() override;

  void Open(const GrpcChannelOptions& options = {});
  End& NewEnd() { return ends_.emplace_back(); }
  template <typename Fn>
  void OnPoller(Fn fn) {
    std::promise<void> ran;
    poller_.PostFn([&] {
      fn();
      ran.set_value();
    });
    ran.get_future().wait();
  }
  // On the poller.
  void FetchHere(const std::string& edge, End* end, const RecvArgs& args = RecvArgs());
  void Fetch(const std::string& edge, End* end, const RecvArgs& args = RecvArgs()) {
    OnPoller([&] { FetchHere(edge, end, args); });
  }

  std::list<End> ends_;  // They outlive the channel.
  const SteadyClock clock_{};
  ScriptedProducer producer_;
  Poller poller_;
  EventThread events_{std::make_unique<grpc::CompletionQueue>(), std::vector<Poller*>{&poller_}};
  CallSigner signer_{{"lab", kHostConsumer, 1}, "", UnixMs};
  std::unique_ptr<GrpcChannel> channel_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_CONTRACT_SCRIPTED_PRODUCER_H_
