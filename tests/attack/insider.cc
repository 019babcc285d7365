#include "tests/attack/insider.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>
#include <vector>

namespace tryst {
namespace {

constexpr char kService[] = "/tryst.rpc.TransportService/";

std::string TextOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string out;
  if (!buffer.Valid() || !buffer.Dump(&slices).ok()) return out;
  for (const grpc::Slice& slice : slices) {
    out.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return out;
}

std::shared_ptr<grpc::Channel> OwnConnection(const std::string& address) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetMaxReceiveMessageSize(-1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
}

}  // namespace

Insider::Insider(Target target, const std::string& name, uint64_t incarnation)
    : target_(std::move(target)),
      signer_({target_.cluster, name, incarnation}, target_.token, UnixMs),
      channel_(OwnConnection(target_.address)) {}

grpc::Status Insider::Call(const std::string& method, const std::string& request,
                           std::string* answer, grpc_compression_algorithm packing) {
  grpc::GenericStub stub(channel_);
  grpc::ClientContext context;
  context.set_compression_algorithm(packing);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  context.AddMetadata(kCallerMetadata, signer_.Sign(target_.worker, kService + method, request));
  const grpc::Slice slice(request);
  const grpc::ByteBuffer bytes(&slice, 1);
  grpc::ByteBuffer response;
  grpc::CompletionQueue queue;
  auto call = stub.PrepareUnaryCall(&context, kService + method, bytes, &queue);
  call->StartCall();
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (answer != nullptr) *answer = TextOf(response);
  return status;
}

grpc::Status Insider::Fetch(const std::string& request, int wait_ms, std::string* answer) {
  const std::string method = std::string(kService) + "FetchTensor";
  grpc::GenericStub stub(channel_);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::milliseconds(wait_ms == 0 ? 10'000 : wait_ms));
  context.AddMetadata(kCallerMetadata, signer_.Sign(target_.worker, method, request));
  grpc::CompletionQueue queue;
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  auto call = stub.PrepareCall(&context, method, &queue);
  call->StartCall(nullptr);
  bool good = next();
  const grpc::Slice slice(request);
  if (good) {
    call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    good = next();
  }
  grpc::ByteBuffer response;
  if (good) {
    call->Read(&response, nullptr);
    if (next() && answer != nullptr) *answer = TextOf(response);
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  next();
  return status;
}

}  // namespace tryst
