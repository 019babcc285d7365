#include "tests/contract/scripted_producer.h"

#include <grpcpp/create_channel.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "channel/compat/fetch_wire.h"
#include "channel/grpc/byte_buffers.h"
#include "rendezvous/tensor_key.h"

namespace tryst {
namespace {

constexpr std::chrono::seconds kMostWait(10);

// The consumer asks whether we are there, and for nothing else.
bool IsQuestion(const rpc::FetchRequest& request) {
  return request.waits() && request.asks_size() == 0 && request.producer_incarnation() == 0;
}

}  // namespace

rpc::FetchHeader ScriptedHeader() {
  rpc::FetchHeader header;
  header.set_producer_incarnation(kScriptedIncarnation);
  header.set_parcel_bytes(kParcelBytes);
  return header;
}

Tensor OneFloat(float value) {
  Tensor tensor = *Tensor::Allocate(DType::kFloat, {1});
  static_cast<float*>(tensor.mutable_data())[0] = value;
  return tensor;
}

void HeldCall::Answer(const grpc::Status& status, const grpc::ByteBuffer* message) {
  if (answered_.exchange(true)) return;
  if (message == nullptr) return Finish(status);
  buffer_ = *message;
  status_ = status;
  StartWrite(&buffer_);
}

void HeldCall::Answer(const rpc::FetchHeader& header) {
  rpc::FetchResponse response;
  *response.mutable_header() = header;
  const grpc::ByteBuffer message = BufferOf(response.SerializeAsString());
  Answer(grpc::Status::OK, &message);
}

void HeldCall::BeginTensor(uint64_t bytes) {
  rpc::FetchResponse response;
  *response.mutable_header() = ScriptedHeader();
  rpc::TensorMetadata* const metadata = response.mutable_header()->mutable_tensor();
  const Tensor none = *Tensor::Allocate(DType::kUint8, {0});
  *metadata = OutgoingTensor::Make(none, false)->metadata();
  metadata->set_dims(0, static_cast<int64_t>(bytes));
  metadata->set_bytes(bytes);
  response.set_chunk("x");
  buffer_ = BufferOf(response.SerializeAsString());
  begins_ = true;
  StartWrite(&buffer_);
}

void HeldCall::AnswerTensor(const Tensor& tensor) {
  const OutgoingTensor out = *OutgoingTensor::Make(tensor, false);
  rpc::FetchHeader header = ScriptedHeader();
  *header.mutable_tensor() = out.metadata();
  const grpc::ByteBuffer message =
      out.Message(&header, request_.offset(), out.bytes() - request_.offset(), request_.digests());
  Answer(grpc::Status::OK, &message);
}

void HeldCall::OnReadDone(bool ok) {
  if (!ok || !request_.ParseFromString(BytesOf(buffer_))) return Answer(grpc::Status::OK);
  producer_->OnRequest(this);
}

void HeldCall::OnCancel() {
  producer_->OnCancel();
  Answer(grpc::Status::CANCELLED);
}

ScriptedProducer::ScriptedProducer() {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
  builder.RegisterCallbackGenericService(this);
  server_ = builder.BuildAndStart();
  channel_ =
      grpc::CreateChannel(absl::StrCat("127.0.0.1:", port_), grpc::InsecureChannelCredentials());
}

ScriptedProducer::~ScriptedProducer() { server_->Shutdown(std::chrono::system_clock::now()); }

HeldCall* ScriptedProducer::AwaitCall(size_t number) {
  const auto until = std::chrono::steady_clock::now() + kMostWait;
  MutexLock lock(&mu_);
  while (calls_.size() <= number) {
    if (changed_.WaitUntil(&mu_, until)) return nullptr;
  }
  return calls_[number];
}

size_t ScriptedProducer::calls() {
  MutexLock lock(&mu_);
  return calls_.size();
}

rpc::FetchRequest ScriptedProducer::RequestOf(size_t number) {
  MutexLock lock(&mu_);
  return requests_.at(number);
}

void ScriptedProducer::BeSilent() {
  MutexLock lock(&mu_);
  is_silent_ = true;
}

size_t ScriptedProducer::questions() {
  MutexLock lock(&mu_);
  return questions_;
}

std::vector<rpc::FetchRequest> ScriptedProducer::notes() {
  MutexLock lock(&mu_);
  return notes_;
}

void ScriptedProducer::LoseNotes() {
  MutexLock lock(&mu_);
  loses_notes_ = true;
}

size_t ScriptedProducer::cancels() {
  MutexLock lock(&mu_);
  return cancels_;
}

size_t ScriptedProducer::RefuseAll(const grpc::Status& status) {
  MutexLock lock(&mu_);
  refusal_ = status;
  return calls_.size();
}

void ScriptedProducer::OnRequest(HeldCall* call) {
  grpc::Status refusal;
  const bool is_note = call->request().ends();
  const bool is_question = IsQuestion(call->request());
  bool says_so = false;
  {
    MutexLock lock(&mu_);
    refusal = refusal_;
    if (is_note) {
      refusal =
          loses_notes_ ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "lost") : grpc::Status::OK;
    }
    questions_ += is_question;
    says_so = is_question && !is_silent_;
    if (is_note) {
      notes_.push_back(call->request());
    } else if (!says_so) {
      calls_.push_back(call);
      requests_.push_back(call->request());
    }
    changed_.NotifyAll();
  }
  if (is_note) return call->Answer(refusal);
  if (!refusal.ok()) return call->Answer(refusal);
  if (says_so) call->Answer(ScriptedHeader());
}

void ScriptedProducer::OnCancel() {
  MutexLock lock(&mu_);
  ++cancels_;
}

absl::Status ReceiveEnd::Await() {
  if (future_.wait_for(kMostWait) != std::future_status::ready) {
    return absl::UnknownError("it does not end");
  }
  return future_.get();
}

ScriptedProducerTest::~ScriptedProducerTest() {
  producer_.RefuseAll(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the test is over"));
  OnPoller([this] { channel_->Close(absl::CancelledError("the test is over")); });
  bool drained = false;
  while (!drained) {
    OnPoller([&] { drained = channel_->Drained(); });
  }
  poller_.Stop();
}

void ScriptedProducerTest::Open(const GrpcChannelOptions& options) {
  poller_.Start();
  channel_ =
      std::make_unique<GrpcChannel>(kHostWorker, &producer_, &signer_, &events_, &poller_, options);
}

void ScriptedProducerTest::FetchHere(const std::string& edge, End* end, const RecvArgs& args) {
  const TensorKey key =
      TensorKeyPrefix::Make(absl::StrCat(kHostWorker, "/device:CPU:0"), kScriptedIncarnation,
                            absl::StrCat(kHostConsumer, "/device:CPU:0"), edge)
          ->At(0, 0);
  channel_->Fetch(1, key, args, end->Done());
}

}  // namespace tryst
