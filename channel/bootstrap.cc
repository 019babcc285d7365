#include "channel/bootstrap.h"

#include "absl/strings/str_cat.h"

namespace tryst {

absl::Status CheckProtocol(const Hello& hello, const std::string& self) {
  if (hello.protocol_newest == kProtocolOfCalls) {
    return absl::UnimplementedError(absl::StrCat(hello.worker, " speaks protocol ",
                                                 kProtocolOfCalls, ", for which ", self,
                                                 " has no path but calls of gRPC"));
  }
  if (hello.protocol_newest < kProtocolOldest || hello.protocol_oldest > kProtocolNewest ||
      hello.protocol_oldest > hello.protocol_newest) {
    return absl::FailedPreconditionError(absl::StrCat(
        hello.worker, " speaks protocol ", hello.protocol_oldest, " to ", hello.protocol_newest,
        " and ", self, " ", kProtocolOldest, " to ", kProtocolNewest,
        ": run the same release on both, or two that follow each other"));
  }
  return absl::OkStatus();
}

}  // namespace tryst
