#ifndef TRYST_VERBS_OFI_OFI_ENDPOINT_H_
#define TRYST_VERBS_OFI_OFI_ENDPOINT_H_

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "verbs/ofi/ofi_device.h"

namespace tryst {

// libfabric returns its address when an operation ends. It is the first member of whatever the
// operation belongs to.
struct OfiContext {
  fi_context2 provider;  // Used by the provider.
  enum class Owner : uint8_t { kWork, kFrameIn, kFrameOut } owner = Owner::kWork;
  uint32_t index = 0;
};

// The libfabric objects of one queue pair: an endpoint without connections, which talks to one
// peer, with its own completion queue and address table. Closing it ends every access of the
// provider to memory that was named through it. Used by one thread.
class OfiEndpoint {
 public:
  static absl::StatusOr<std::unique_ptr<OfiEndpoint>> Open(OfiDevice* device, size_t depth);
  ~OfiEndpoint() { Close(); }
  OfiEndpoint(const OfiEndpoint&) = delete;
  OfiEndpoint& operator=(const OfiEndpoint&) = delete;

  void Close();
  bool closed() const { return endpoint_ == nullptr; }
  absl::StatusOr<std::string> Name() const;
  absl::Status SetPeer(const std::string& name);
  // A descriptor to sleep on; -1: the provider has none, or the endpoint is closed.
  int descriptor() const { return descriptor_; }
  // Whether descriptor() will report what comes from now on.
  bool MaySleep() const;

  // 0, or a negated error of libfabric; -FI_EAGAIN: try later.
  int64_t Send(const void* bytes, size_t count, void* descriptor, OfiContext* context);
  int64_t Receive(void* into, size_t count, void* descriptor, OfiContext* context);
  int64_t Write(absl::Span<const iovec> from, void** descriptors, uint64_t to, uint64_t key,
                const uint64_t* immediate, OfiContext* context);
  int64_t Read(absl::Span<const iovec> into, void** descriptors, uint64_t from, uint64_t key,
               OfiContext* context);
  // These return what libfabric's calls of the same names return.
  int64_t ReadCompletions(fi_cq_data_entry* out, size_t room) {
    return fi_cq_read(completions_, out, room);
  }
  int64_t ReadError(fi_cq_err_entry* out) { return fi_cq_readerr(completions_, out, 0); }

 private:
  explicit OfiEndpoint(OfiDevice* device) : device_(device) {}
  bool IsOfThisProcess(const std::string& name) const;
  absl::Status Initialize(size_t depth);

  OfiDevice* const device_;
  fid_cq* completions_ = nullptr;
  fid_av* addresses_ = nullptr;
  fid_ep* endpoint_ = nullptr;
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
  int descriptor_ = -1;
  bool shares_process_ = false;  // With its peer, for a provider that then cannot close it.
};

}  // namespace tryst

#endif  // TRYST_VERBS_OFI_OFI_ENDPOINT_H_
