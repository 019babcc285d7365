#ifndef TRYST_CHANNEL_GRPC_HELLO_WIRE_H_
#define TRYST_CHANNEL_GRPC_HELLO_WIRE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "channel/bootstrap.h"

namespace tryst {

namespace rpc {
class HelloRequest;
}  // namespace rpc

void HelloToProto(const Hello& hello, rpc::HelloRequest* out);

// kInvalidArgument: a field is larger than in any honest hello.
absl::StatusOr<Hello> HelloFromProto(const rpc::HelloRequest& in);

// Shared-token mode: proves that the worker which answers `statement` knows the token.
std::string HelloAnswerMac(absl::string_view token, absl::string_view statement,
                           const rpc::HelloRequest& answer);

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_HELLO_WIRE_H_
