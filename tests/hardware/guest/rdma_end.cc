#include "tests/hardware/guest/rdma_end.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "verbs/ibv/ibv_nic.h"

namespace tryst {
namespace {

constexpr size_t kPage = 4096;

struct Greeting {
  uint64_t address;
  uint32_t key;
  uint32_t pair_bytes;
  char pair[256];
};

absl::Status Swap(int socket, const void* ours, void* theirs, size_t bytes) {
  if (send(socket, ours, bytes, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes) ||
      recv(socket, theirs, bytes, MSG_WAITALL) != static_cast<ssize_t>(bytes)) {
    return absl::UnavailableError(absl::StrCat("the other process: ", strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace

SendWork RdmaEnd::Write(uint64_t id, size_t offset, size_t length, Entry* entry) const {
  *entry = {region->address() + offset, length, region->local_key()};
  SendWork work;
  work.id = id;
  work.op = SendOp::kWrite;
  work.entries = absl::MakeConstSpan(entry, 1);
  work.remote_address = remote_address + offset;
  work.remote_key = remote_key;
  return work;
}

absl::StatusOr<RdmaEnd> OpenRdmaEnd(const std::string& device, size_t bytes,
                                    QueuePairOptions options) {
  RdmaEnd end;
  IbvNicOptions nic_options;
  nic_options.choice.settings.device = device;
  absl::StatusOr<std::unique_ptr<Nic>> nic = OpenIbvNic(nic_options);
  if (!nic.ok()) return nic.status();
  end.nic = *std::move(nic);
  end.bytes = (bytes + kPage - 1) / kPage * kPage;
  end.memory.reset(static_cast<char*>(std::aligned_alloc(kPage, end.bytes)));
  std::memset(end.memory.get(), 0, end.bytes);
  absl::StatusOr<std::unique_ptr<Region>> region =
      end.nic->RegisterRegion(end.memory.get(), end.bytes, kRemoteWrite | kRemoteRead);
  if (!region.ok()) return region.status();
  end.region = *std::move(region);
  absl::StatusOr<std::unique_ptr<CompletionQueue>> completions =
      end.nic->CreateCompletionQueue(options.send_depth + options.receive_depth);
  if (!completions.ok()) return completions.status();
  end.completions = *std::move(completions);
  options.completions = end.completions.get();
  absl::StatusOr<std::unique_ptr<QueuePair>> pair = end.nic->CreateQueuePair(options);
  if (!pair.ok()) return pair.status();
  end.pair = *std::move(pair);
  return end;
}

absl::Status Meet(int socket, RdmaEnd* end) {
  Greeting ours = {};
  const std::string pair = end->pair->LocalAddress();
  ours.address = end->region->address();
  ours.key = end->region->remote_key();
  ours.pair_bytes = static_cast<uint32_t>(pair.size());
  std::memcpy(ours.pair, pair.data(), std::min(pair.size(), sizeof(ours.pair)));
  Greeting theirs = {};
  absl::Status status = Swap(socket, &ours, &theirs, sizeof(ours));
  if (!status.ok()) return status;
  end->remote_address = theirs.address;
  end->remote_key = theirs.key;
  status = end->pair->Connect(absl::string_view(theirs.pair, theirs.pair_bytes));
  if (!status.ok()) return status;
  char token = 0;
  return Swap(socket, &token, &token, 1);
}

absl::Status Join(RdmaEnd* a, RdmaEnd* b) {
  const absl::Status status = a->pair->Connect(b->pair->LocalAddress());
  if (!status.ok()) return status;
  a->remote_address = b->region->address();
  a->remote_key = b->region->remote_key();
  b->remote_address = a->region->address();
  b->remote_key = a->region->remote_key();
  return b->pair->Connect(a->pair->LocalAddress());
}

}  // namespace tryst
