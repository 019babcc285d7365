#ifndef TRYST_TESTS_ATTACK_INSIDER_H_
#define TRYST_TESTS_ATTACK_INSIDER_H_

#include <grpc/impl/codegen/compression_types.h>
#include <grpcpp/channel.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <memory>
#include <string>

#include "channel/signing/caller.h"

namespace tryst {

// Calls a worker's methods by hand, under any name, with or without a token, and with any bytes.
class Insider {
 public:
  struct Target {
    std::string worker;
    std::string address;
    std::string cluster = "lab";
    std::string token;  // The token that it holds; may be empty.
  };
  Insider(Target target, const std::string& name, uint64_t incarnation);

  // Sends any bytes to any method of TransportService, within ten seconds. `answer` may be null.
  grpc::Status Call(const std::string& method, const std::string& request,
                    std::string* answer = nullptr,
                    grpc_compression_algorithm packing = GRPC_COMPRESS_NONE);
  // Calls FetchTensor. The call stays open for `wait_ms`; 0: until it is answered.
  grpc::Status Fetch(const std::string& request, int wait_ms, std::string* answer = nullptr);

  const std::string& name() const { return signer_.self().worker; }
  uint64_t incarnation() const { return signer_.self().incarnation; }
  const Target& target() const { return target_; }

 private:
  const Target target_;
  CallSigner signer_;
  const std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_ATTACK_INSIDER_H_
