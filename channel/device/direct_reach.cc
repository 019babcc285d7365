#include "channel/device/direct_reach.h"

#include <unistd.h>

#include <cstring>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "gpu/device_memory.h"
#include "gpu/pinned_memory.h"
#include "verbs/ibv/peer_memory.h"

namespace tryst {
namespace {

constexpr uint64_t kProofBytes = 64 << 10;
constexpr uint64_t kFlushBytes = 8;

// The memory, regions and queue pairs of a proof.
class Proof {
 public:
  static absl::StatusOr<std::unique_ptr<Proof>> Prepare(Nic* nic, const Gpu& gpu, DirectWay way,
                                                        const DirectOptions& options);
  // The NIC writes, the GPU's copy engine reads. kDataLoss: other bytes came than went.
  absl::Status WriteRound(bool flush);
  // The copy engine writes, the NIC reads.
  absl::Status ReadRound();

 private:
  Proof(const Gpu& gpu, const DirectOptions& options)
      : gpu_(gpu), patience_ms_(options.patience_ms), random_(options.seed) {}
  absl::Status Transfer(SendOp op, uint64_t bytes);
  absl::Status CopyOnGpu(cuda::Address to, cuda::Address from);
  uint32_t FillRandom(void* bytes);
  uint32_t Digest(const void* bytes) const { return Crc32c(0, bytes, kProofBytes); }

  const Gpu& gpu_;
  const int64_t patience_ms_;
  const SteadyClock clock_;
  std::mt19937_64 random_;
  std::unique_ptr<CompletionQueue> completions_;
  DeviceMemory device_;
  PinnedMemory pinned_;              // For the copy engine,
  std::vector<uint8_t> host_bytes_;  // and for the NIC.
  GpuStream stream_;
  std::unique_ptr<Region> device_region_;
  std::unique_ptr<Region> host_region_;
  LoopBack loop_;  // Destroyed first.
};

absl::StatusOr<std::unique_ptr<Proof>> Proof::Prepare(Nic* nic, const Gpu& gpu, DirectWay way,
                                                      const DirectOptions& options) {
  std::unique_ptr<Proof> proof(new Proof(gpu, options));
  auto device = DeviceMemory::Allocate(&gpu, kProofBytes);
  if (!device.ok()) return device.status();
  proof->device_ = *std::move(device);
  auto region = RegisterGpuMemory(nic, gpu, way, proof->device_.address(), kProofBytes,
                                  kRemoteWrite | kRemoteRead);
  if (!region.ok()) return region.status();
  proof->device_region_ = *std::move(region);
  auto pinned = PinnedMemory::Allocate(&gpu, kProofBytes);
  if (!pinned.ok()) return pinned.status();
  proof->pinned_ = *std::move(pinned);
  auto stream = gpu.MakeStream();
  if (!stream.ok()) return stream.status();
  proof->stream_ = *std::move(stream);
  proof->host_bytes_.resize(kProofBytes);
  auto host = nic->RegisterRegion(proof->host_bytes_.data(), kProofBytes, kLocalWrite);
  if (!host.ok()) return host.status();
  proof->host_region_ = *std::move(host);
  auto completions = nic->CreateCompletionQueue(LoopBack::kCompletions);
  if (!completions.ok()) return completions.status();
  proof->completions_ = *std::move(completions);
  auto loop = LoopBack::Open(nic, proof->completions_.get());
  if (!loop.ok()) return loop.status();
  proof->loop_ = *std::move(loop);
  return proof;
}

uint32_t Proof::FillRandom(void* bytes) {
  auto* words = static_cast<uint64_t*>(bytes);
  for (uint64_t i = 0; i < kProofBytes / 8; ++i) words[i] = random_();
  return Digest(bytes);
}

absl::Status Proof::Transfer(SendOp op, uint64_t bytes) {
  const char* const name = op == SendOp::kRead ? "RDMA READ" : "RDMA WRITE";
  const Entry entry{host_region_->address(), bytes, host_region_->local_key()};
  SendWork work;
  work.op = op;
  work.entries = absl::MakeConstSpan(&entry, 1);
  work.remote_address = device_region_->address();
  work.remote_key = device_region_->remote_key();
  absl::Status status = loop_.near->PostSend(absl::MakeConstSpan(&work, 1));
  if (!status.ok()) return status;
  const Deadline until = Deadline::After(clock_, absl::Milliseconds(patience_ms_));
  Completion done;
  for (;;) {
    auto count = completions_->Poll(absl::MakeSpan(&done, 1));
    if (!count.ok()) return count.status();
    if (*count > 0) break;
    if (until.Passed(clock_.NowNs())) {
      return absl::DeadlineExceededError(absl::StrCat(
          name, " by the NIC to itself, to prove that it reaches the GPU, did not end"));
    }
    std::this_thread::yield();
  }
  if (done.status == CompletionStatus::kOk) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(name, " by the NIC to itself, to prove that it reaches the GPU, ended with '",
                   CompletionStatusName(done.status), "', vendor error ", done.vendor_error));
}

absl::Status Proof::CopyOnGpu(cuda::Address to, cuda::Address from) {
  absl::Status status = gpu_.Use();
  if (!status.ok()) return status;
  status = gpu_.driver().Check("cuMemcpyAsync",
                               gpu_.calls().cuMemcpyAsync(to, from, kProofBytes, stream_.get()));
  return status.ok() ? gpu_.WaitFor(stream_.get()) : status;
}

absl::Status Proof::WriteRound(bool flush) {
  const uint32_t digest = FillRandom(host_bytes_.data());
  absl::Status status = Transfer(SendOp::kWrite, kProofBytes);
  if (status.ok() && flush) status = Transfer(SendOp::kRead, kFlushBytes);
  if (status.ok()) {
    status = CopyOnGpu(reinterpret_cast<cuda::Address>(pinned_.data()), device_.address());
  }
  if (!status.ok()) return status;
  if (Digest(pinned_.data()) == digest) return absl::OkStatus();
  return absl::DataLossError("the NIC's test write did not arrive in the GPU's memory");
}

absl::Status Proof::ReadRound() {
  const uint32_t digest = FillRandom(pinned_.data());
  absl::Status status =
      CopyOnGpu(device_.address(), reinterpret_cast<cuda::Address>(pinned_.data()));
  if (status.ok()) status = Transfer(SendOp::kRead, kProofBytes);
  if (!status.ok()) return status;
  if (Digest(host_bytes_.data()) == digest) return absl::OkStatus();
  return absl::DataLossError("the NIC's test read of the GPU's memory brought wrong bytes");
}

absl::Status RunProof(Nic* nic, const Gpu& gpu, DirectWay way, const DirectOptions& options,
                      DirectReach* reach) {
  auto proof = Proof::Prepare(nic, gpu, way, options);
  if (!proof.ok()) return proof.status();
  for (int round = 0; round < options.rounds; ++round) {
    absl::Status status = (*proof)->WriteRound(reach->flush.flush);
    if (absl::IsDataLoss(status) && !reach->flush.flush && !options.flush.has_value() &&
        nic->limits().max_reads_in_flight > 0) {
      // The policy is wrong for this machine.
      reach->flush = {true, absl::StrCat("without it, round ", round,
                                         " of the test that the NIC reaches GPU memory read old "
                                         "bytes")};
      status = (*proof)->WriteRound(true);
    }
    if (status.ok() && nic->limits().max_reads_in_flight > 0) status = (*proof)->ReadRound();
    if (!status.ok()) {
      return absl::Status(
          status.code(),
          absl::StrCat("round ", round,
                       " of the test that the NIC reaches GPU memory: ", status.message()));
    }
  }
  reach->proof =
      absl::StrCat("proved by ", options.rounds, " rounds of ", kProofBytes, " bytes each way");
  return absl::OkStatus();
}

absl::Status MayTry(const Nic& nic, const Gpu& gpu, DirectWay way, const DirectOptions& options,
                    const DirectReach& reach) {
  if (way == DirectWay::kDmaBuf ? !options.dma_buf : !options.peer_memory) {
    return absl::UnimplementedError("the program's options switch off NIC access to GPU memory");
  }
  if (reach.distance > options.farthest && reach.distance != PciDistance::kUnknown) {
    return absl::UnimplementedError(absl::StrCat(
        "NIC and GPU are too far apart in this machine: ", PciDistanceName(reach.distance),
        ", which is farther than ", PciDistanceName(options.farthest)));
  }
  if (reach.flush.flush && nic.limits().max_reads_in_flight == 0) {
    return absl::UnimplementedError(
        "this GPU needs a read after each write (flush), and this NIC has no RDMA READ");
  }
  if (way == DirectWay::kDmaBuf) {
    if (nic.limits().dma_buf) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrCat(nic.name(),
                     " does not register dma-bufs: install Linux 5.12, rdma-core 34 and a driver "
                     "that supports them, or later ones"));
  }
  if (!nic.limits().device_pointers) {
    return absl::UnimplementedError(
        absl::StrCat(nic.name(), " is a software NIC, which cannot reach a GPU"));
  }
  if (!gpu.device().gpu_direct_rdma) {
    return absl::UnimplementedError(
        "the GPU's driver reports that this GPU does not support access by NICs");
  }
  if (HasPeerMemoryModule(options.sysfs_root)) return absl::OkStatus();
  return absl::UnimplementedError(
      "no peer-memory module is loaded: modprobe nvidia_peermem (or nv_peer_mem)");
}

}  // namespace

const char* DirectWayName(DirectWay way) {
  switch (way) {
    case DirectWay::kDmaBuf:
      return "dma-buf";
    case DirectWay::kPeerMemory:
      return "peer memory";
    case DirectWay::kStaging:
      return "staging";
  }
  return "?";
}

std::string DirectReach::Refusal() const {
  return absl::StrCat("dma-buf: ", dma_buf, "; peer memory: ", peer_memory);
}

std::string DirectReach::ToText() const {
  std::string text = absl::StrCat("GPU ", gpu, " (", gpu_name, " at ", pci_bus_id, ") and ", nic,
                                  ", ", PciDistanceName(distance), ": ", DirectWayName(way));
  if (way == DirectWay::kStaging) return absl::StrCat(text, "; ", Refusal());
  if (way == DirectWay::kPeerMemory) absl::StrAppend(&text, ", not dma-buf: ", dma_buf);
  return absl::StrCat(text, "; ", proof,
                      flush.flush ? "; flushed: " : "; not flushed: ", flush.why);
}

absl::StatusOr<std::unique_ptr<Region>> RegisterGpuMemory(Nic* nic, const Gpu& gpu, DirectWay way,
                                                          cuda::Address address, uint64_t bytes,
                                                          uint32_t access) {
  if (way == DirectWay::kPeerMemory) {
    return nic->RegisterRegion(reinterpret_cast<void*>(address), bytes, access);
  }
  if (way == DirectWay::kStaging)
    return absl::UnimplementedError(
        "the NIC does not reach the GPU's memory, so tensors there are copied through host memory");
  auto exported = ExportDmaBuf(gpu, address, bytes);
  if (!exported.ok()) return exported.status();
  auto region = nic->RegisterDmaBuf(exported->fd, exported->offset, bytes, address, access);
  close(exported->fd);  // The region keeps the buffer.
  return region;
}

absl::StatusOr<LoopBack> LoopBack::Open(Nic* nic, CompletionQueue* completions) {
  QueuePairOptions options;
  options.completions = completions;
  options.send_depth = kDepth;
  options.receive_depth = 1;
  for (const NicPort& port : nic->Ports()) {
    if (port.state != PortState::kActive) continue;
    options.port = port.number;
    break;
  }
  LoopBack loop;
  for (auto* pair : {&loop.far, &loop.near}) {
    auto made = nic->CreateQueuePair(options);
    if (!made.ok()) return made.status();
    *pair = *std::move(made);
  }
  absl::Status status = loop.far->Connect(loop.near->LocalAddress());
  if (status.ok()) status = loop.near->Connect(loop.far->LocalAddress());
  if (!status.ok()) return status;
  return loop;
}

DirectReach ProveReach(Nic* nic, const Gpu& gpu, const DirectOptions& options) {
  DirectReach reach;
  reach.gpu = gpu.ordinal();
  reach.gpu_name = gpu.device().name;
  reach.pci_bus_id = gpu.device().pci_bus_id;
  reach.nic = nic->name();
  const PciTree tree(options.sysfs_root);
  reach.distance =
      tree.Distance(tree.PathOfBusId(reach.pci_bus_id), tree.PathOfRdmaDevice(reach.nic));
  const FlushPolicy policy = options.flush.has_value()
                                 ? FlushPolicy{*options.flush, "it was set so"}
                                 : ChooseFlush(gpu.device(), options.link, options.control_by_c2c);
  for (DirectWay way : {DirectWay::kDmaBuf, DirectWay::kPeerMemory}) {
    reach.flush = policy;
    absl::Status status = MayTry(*nic, gpu, way, options, reach);
    if (status.ok()) status = RunProof(nic, gpu, way, options, &reach);
    if (status.ok()) {
      reach.way = way;
      return reach;
    }
    (way == DirectWay::kDmaBuf ? reach.dma_buf : reach.peer_memory) = std::string(status.message());
  }
  return reach;
}

}  // namespace tryst
