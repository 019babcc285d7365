// gRPC, unary calls over completion queues, one thread at each end. proto-tcp, proto-uds:
// messages with a bytes field and default arguments, as most users write them. bytes-tcp,
// bytes-uds: raw ByteBuffers that refer to the tensor without a copy, and tuned arguments, as in
// TensorFlow. -spin never sleeps in the queue. -tls: with certificates at both ends.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <limits.h>
#include <malloc.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "bench/peers/harness.h"
#include "grpc.grpc.pb.h"

namespace tryst {
namespace {

using bench::PullRequest;
using bench::PullResponse;
using bench::Tensors;
using grpc::ByteBuffer;
using grpc::CompletionQueue;
using grpc::Slice;

constexpr int kCallsWaiting = 160;  // More than keys are ever outstanding.
constexpr char kMethod[] = "/tryst.bench.Tensors/Pull";

std::string Secret(const char* name) {
  std::ifstream file(SecretFile(name));
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::shared_ptr<grpc::ServerCredentials> ServerCredentials(const std::string& variant) {
  if (!Has(variant, "tls")) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = Secret("ca.crt");
  options.pem_key_cert_pairs.push_back({Secret("worker.key"), Secret("worker.crt")});
  return grpc::SslServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> ChannelCredentials(const std::string& variant) {
  if (!Has(variant, "tls")) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials({Secret("ca.crt"), Secret("worker.key"), Secret("worker.crt")});
}

template <typename Set>
void SetArguments(const std::string& variant, const Set& set) {
  set(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, -1);
  set(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1);
  if (!Has(variant, "bytes")) return;
  set(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, (16 << 20) - 1);
  set(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 64 << 20);
  set(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  set(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, 8 << 20);
  set(GRPC_ARG_TCP_READ_CHUNK_SIZE, 1 << 20);
  set(GRPC_ARG_TCP_MIN_READ_CHUNK_SIZE, 64 << 10);
  set(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 16 << 20);
  set(GRPC_ARG_MINIMAL_STACK, 1);
}

bool Next(CompletionQueue* queue, bool spin, void** tag, bool* ok) {
  if (!spin) return queue->Next(tag, ok);
  for (;;) {
    const auto status = queue->AsyncNext(tag, ok, gpr_inf_past(GPR_CLOCK_MONOTONIC));
    if (status != CompletionQueue::TIMEOUT) return status == CompletionQueue::GOT_EVENT;
  }
}

// The PullResponse around `held`, in its wire form: a tag byte, a length, the bytes.
constexpr char kTensorTag = 0x0a;
size_t PutHeader(char* into, size_t bytes) {
  size_t length = 0;
  into[length++] = kTensorTag;
  for (; bytes >= 0x80; bytes >>= 7) into[length++] = static_cast<char>(bytes | 0x80);
  into[length++] = static_cast<char>(bytes);
  return length;
}
ByteBuffer Encode(const Held& held) {
  char header[16];
  const size_t length = PutHeader(header, held.bytes);
  if (held.bytes > 1024) {
    const Slice parts[2] = {Slice(header, length),
                            Slice(held.data, held.bytes, Slice::STATIC_SLICE)};
    return ByteBuffer(parts, 2);
  }
  grpc_slice all = grpc_slice_malloc(length + held.bytes);
  memcpy(GRPC_SLICE_START_PTR(all), header, length);
  memcpy(GRPC_SLICE_START_PTR(all) + length, held.data, held.bytes);
  const Slice part(all, Slice::STEAL_REF);
  return ByteBuffer(&part, 1);
}
void Decode(const ByteBuffer& response, char* into, size_t bytes) {
  char header[16];
  size_t skip = PutHeader(header, bytes);
  std::vector<Slice> parts;
  if (!response.Dump(&parts).ok() || response.Length() != skip + bytes) Die("a response's size");
  for (const Slice& part : parts) {
    const size_t skipped = std::min(skip, part.size());
    memcpy(into, part.begin() + skipped, part.size() - skipped);
    into += part.size() - skipped;
    skip -= skipped;
  }
}

// A call at the server, of either kind: the two differ in the types of their messages.
template <typename Service, typename Request, typename Response>
class Calls {
 public:
  Calls(Table* table, Service* service, grpc::ServerCompletionQueue* queue)
      : table_(table), service_(service), queue_(queue) {
    for (int i = 0; i < kCallsWaiting; ++i) Wait();
  }
  void Run(bool spin) {
    void* tag;
    bool ok;
    while (Next(queue_, spin, &tag, &ok)) {
      Call* call = static_cast<Call*>(tag);
      if (!ok || call->answered) {
        delete call;
        continue;
      }
      call->answered = true;
      Wait();
      Answer(call);
    }
  }

 private:
  struct Call {
    grpc::ServerContext context;
    Request request;
    grpc::ServerAsyncResponseWriter<Response> writer{&context};
    Response response;
    bool answered = false;
  };
  void Wait() {
    Call* call = new Call;
    service_->RequestPull(&call->context, &call->request, &call->writer, queue_, queue_, call);
  }
  void Answer(Call* call) {
    Fill(call->request, &call->response);
    call->writer.Finish(call->response, grpc::Status::OK, call);
  }
  void Fill(const PullRequest& request, PullResponse* response) {
    const Held held = table_->Find(request.key().data());
    response->set_tensor(held.data, held.bytes);
  }
  void Fill(const ByteBuffer& request, ByteBuffer* response) {
    Slice bytes;
    PullRequest parsed;
    if (!request.DumpToSingleSlice(&bytes).ok() ||
        !parsed.ParseFromArray(bytes.begin(), static_cast<int>(bytes.size()))) {
      Die("a request does not parse");
    }
    *response = Encode(table_->Find(parsed.key().data()));
  }

  Table* const table_;
  Service* const service_;
  grpc::ServerCompletionQueue* const queue_;
};

class GrpcProducer final : public ProducerEnd {
 public:
  GrpcProducer(const std::string& variant, const std::vector<size_t>& sizes)
      : variant_(variant), table_(sizes) {
    grpc::ServerBuilder builder;
    int port = 0;
    address_ = "unix:/tmp/tryst-bench-" + std::to_string(getpid());
    builder.AddListeningPort(Has(variant, "uds") ? address_ : "127.0.0.1:0",
                             ServerCredentials(variant), &port);
    SetArguments(variant,
                 [&](const char* name, int value) { builder.AddChannelArgument(name, value); });
    builder.SetMaxReceiveMessageSize(-1);
    queue_ = builder.AddCompletionQueue();
    if (Has(variant, "bytes")) {
      builder.RegisterService(&raw_);
    } else {
      builder.RegisterService(&typed_);
    }
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) Die("no gRPC server");
    if (Has(variant, "tcp")) address_ = "127.0.0.1:" + std::to_string(port);
    thread_ = std::thread([this] { Run(); });
  }
  Table& table() override { return table_; }
  std::string Address() override { return address_; }
  void Poll(bool) override {}

 private:
  using Raw = Tensors::WithRawMethod_Pull<Tensors::Service>;
  using Typed = Tensors::AsyncService;
  void Run() {
    const bool spin = Has(variant_, "spin");
    if (Has(variant_, "bytes")) {
      Calls<Raw, ByteBuffer, ByteBuffer>(&table_, &raw_, queue_.get()).Run(spin);
    } else {
      Calls<Typed, PullRequest, PullResponse>(&table_, &typed_, queue_.get()).Run(spin);
    }
  }

  const std::string variant_;
  Table table_;
  std::string address_;
  Raw raw_;
  Typed typed_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::thread thread_;
};

class GrpcConsumer final : public ConsumerEnd {
 public:
  GrpcConsumer(const std::string& variant, const ConsumerNeeds& needs)
      : variant_(variant), needs_(needs), calls_(needs.slots) {
    grpc::ChannelArguments arguments;
    SetArguments(variant, [&](const char* name, int value) { arguments.SetInt(name, value); });
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel_ = grpc::CreateCustomChannel(needs.address, ChannelCredentials(variant), arguments);
    typed_ = Tensors::NewStub(channel_);
    raw_ = std::make_unique<grpc::GenericStub>(channel_);
    thread_ = std::thread([this] { Run(); });
  }
  void Ask(int slot, const std::string& key, char* into, size_t bytes) override {
    Call& call = calls_[slot];
    call.into = into;
    call.bytes = bytes;
    call.context = std::make_unique<grpc::ClientContext>();
    call.context->set_wait_for_ready(true);
    void* tag = &call;
    PullRequest request;
    request.set_key(key);
    if (Has(variant_, "bytes")) {
      std::string text;
      request.SerializeToString(&text);
      const Slice part(text);
      call.raw = raw_->PrepareUnaryCall(call.context.get(), kMethod, ByteBuffer(&part, 1), &queue_);
      call.raw->StartCall();
      call.raw->Finish(&call.raw_response, &call.status, tag);
    } else {
      call.typed = typed_->AsyncPull(call.context.get(), request, &queue_);
      call.typed->Finish(&call.response, &call.status, tag);
    }
  }
  void Poll(bool) override {}

 private:
  struct Call {
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<grpc::ClientAsyncResponseReader<PullResponse>> typed;
    std::unique_ptr<grpc::GenericClientAsyncResponseReader> raw;
    PullResponse response;
    ByteBuffer raw_response;
    grpc::Status status;
    char* into = nullptr;
    size_t bytes = 0;
  };
  void Run() {
    void* tag;
    bool ok;
    while (Next(&queue_, Has(variant_, "spin"), &tag, &ok)) {
      Call* call = static_cast<Call*>(tag);
      if (!call->status.ok()) Die("Pull: %s", call->status.error_message().c_str());
      const int slot = static_cast<int>(call - calls_.data());
      if (Has(variant_, "bytes")) {
        Decode(call->raw_response, call->into, call->bytes);
        call->raw_response.Clear();
        needs_.landed(slot, call->into);
      } else {
        if (call->response.tensor().size() != call->bytes) Die("a tensor's size");
        needs_.landed(slot, call->response.tensor().data());
      }
    }
  }

  const std::string variant_;
  const ConsumerNeeds needs_;
  std::vector<Call> calls_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<Tensors::Stub> typed_;
  std::unique_ptr<grpc::GenericStub> raw_;
  CompletionQueue queue_;
  std::thread thread_;
};

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  if (argc > 1 && tryst::Has(argv[1], "bytes")) {
    // A receive buffer is freed and allocated again at once, so malloc must keep its memory.
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);  // As trystd has it.
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
    mallopt(M_TOP_PAD, 64 << 20);
  }
  tryst::Library library;
  library.threads = true;
  library.produce = [](const std::string& variant, const std::vector<size_t>& sizes) {
    return std::make_unique<tryst::GrpcProducer>(variant, sizes);
  };
  library.consume = [](const std::string& variant, const tryst::ConsumerNeeds& needs) {
    return std::make_unique<tryst::GrpcConsumer>(variant, needs);
  };
  return tryst::RunLibrary(argc, argv, library);
}
