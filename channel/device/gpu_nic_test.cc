#include "channel/device/gpu_nic.h"

#include <fcntl.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>

#include "channel/device/gdr_check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/doubles/cuda/fake_cuda.h"
#include "tests/doubles/ibv/fake_ibv.h"
#include "verbs/ibv/ibv_nic.h"

// The boundary between a GPU's driver and a NIC's: both are pretend ones, and each argument
// that one gets from the other is looked at.
namespace tryst {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr uint64_t kPage = 4096;

// Ends what is posted on loop-back queue pairs, with real bytes: device memory by the
// pretend driver's back door. What a NIC writes there can be held up until it reads.
class Loops {
 public:
  Loops(FakeIbv* ibv, const FakeCudaControl* cuda) : ibv_(ibv), cuda_(cuda) {
    ibv_->OnPosted([this](FakeIbv::QueuePair* pair) { Serve(pair); });
  }

  bool late_writes = false;  // They are seen by the GPU once the NIC has read from it.
  bool wrong_reads = false;
  bool failing_writes = false;
  bool silent = false;  // Nothing ends.
  int flush_reads = 0;  // Counts reads of 8 bytes of device memory.
  std::set<uint32_t> flush_keys;

  void Serve(FakeIbv::QueuePair* pair) {
    while (!silent && !pair->sends.empty() && pair->sends.front().work.opcode != IBV_WR_SEND) {
      const bool fails = failing_writes && pair->sends.front().work.opcode == IBV_WR_RDMA_WRITE;
      if (!fails) Do(pair->sends.front());
      ibv_->CompleteSends(pair, 1, fails ? IBV_WC_REM_ACCESS_ERR : IBV_WC_SUCCESS);
    }
  }

 private:
  const FakeIbv::Region* Find(uint32_t key, bool remote) const {
    for (const FakeIbv::Region& region : ibv_->regions()) {
      if ((remote ? region.verbs.rkey : region.verbs.lkey) == key) return &region;
    }
    ADD_FAILURE() << "no region has the key " << key;
    return nullptr;
  }

  void Do(const FakeIbv::PostedSend& send) {
    ASSERT_EQ(send.entries.size(), 1u);
    const ibv_sge& entry = send.entries[0];
    const bool read = send.work.opcode == IBV_WR_RDMA_READ;
    ASSERT_TRUE(read || send.work.opcode == IBV_WR_RDMA_WRITE) << send.work.opcode;
    const FakeIbv::Region* host = Find(entry.lkey, false);
    const FakeIbv::Region* device = Find(send.work.wr.rdma.rkey, true);
    ASSERT_TRUE(host != nullptr && device != nullptr);
    EXPECT_EQ(host->access & IBV_ACCESS_LOCAL_WRITE, unsigned{IBV_ACCESS_LOCAL_WRITE});
    const unsigned right = read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
    EXPECT_EQ(device->access & right, right);
    const uint64_t base = reinterpret_cast<uint64_t>(device->verbs.addr);
    const uint64_t address = send.work.wr.rdma.remote_addr;
    EXPECT_GE(address, base);
    EXPECT_LE(address + entry.length, base + device->verbs.length);
    if (!read) {
      std::string bytes(reinterpret_cast<const char*>(entry.addr), entry.length);
      held_.emplace_back(address, std::move(bytes));
      if (!late_writes) Land();
      return;
    }
    Land();
    if (entry.length == 8) {
      ++flush_reads;
      flush_keys.insert(send.work.wr.rdma.rkey);
    }
    cuda_->peek(address, reinterpret_cast<void*>(entry.addr), entry.length);
    if (wrong_reads) *reinterpret_cast<char*>(entry.addr) ^= 1;
  }
  void Land() {
    for (const auto& [address, bytes] : held_) cuda_->poke(address, bytes.data(), bytes.size());
    held_.clear();
  }

  FakeIbv* const ibv_;
  const FakeCudaControl* const cuda_;
  std::vector<std::pair<uint64_t, std::string>> held_;
};

class GpuNicTest : public ::testing::Test {
 protected:
  GpuNicTest() : device_(ibv_.AddDevice("mlx5_0")), cuda_(LoadFakeCuda()), loops_(&ibv_, cuda_) {
    root_ = testing::TempDir() + "gpu_nic_sys";
    std::filesystem::remove_all(root_);
    direct_.sysfs_root = root_;
    direct_.patience_ms = 50;
    Attribute(cuda::kComputeMajor, 8);
    Attribute(cuda::kDmaBuf, 1);
    Attribute(cuda::kGpuDirectRdma, 1);
  }
  ~GpuNicTest() override {
    wrapped_.reset();
    gpu_.reset();
    EXPECT_EQ(ibv_.live(), 0) << "something of the NIC's stays open";
    EXPECT_EQ(cuda_->allocated(), 0u) << "device memory leaked";
    EXPECT_STREQ(cuda_->complaints(), "");
    std::filesystem::remove_all(root_);
  }

  void Attribute(int which, int value) { cuda_->set_attribute(which, value); }
  void LoadPeerMemoryModule() {
    std::filesystem::create_directories(root_ + "/module/nvidia_peermem");
    std::ofstream(root_ + "/module/nvidia_peermem/version") << "580.1\n";
  }

  GpuNic* Wrap() {
    wrapped_.reset();
    gpu_.reset();
    driver_ = *CudaDriver::Load("tests/doubles/cuda/libfake_cuda.so");
    gpu_ = *Gpu::Open(driver_.get(), 0);
    IbvNicOptions options;
    options.calls = ibv_.Calls();
    options.choice.sysfs_root = root_;
    auto nic = OpenIbvNic(options);
    EXPECT_TRUE(nic.ok()) << nic.status();
    wrapped_ = GpuNic::Wrap(std::shared_ptr<Nic>(*std::move(nic)), {gpu_.get()}, direct_);
    return wrapped_.get();
  }
  DirectReach Reach() { return wrapped_->reaches().front(); }

  FakeIbv ibv_;
  FakeIbv::Device& device_;
  const FakeCudaControl* const cuda_;
  Loops loops_;
  std::string root_;
  DirectOptions direct_;
  std::unique_ptr<CudaDriver> driver_;
  std::unique_ptr<Gpu> gpu_;
  std::shared_ptr<GpuNic> wrapped_;
};

TEST_F(GpuNicTest, DmaBufIsTakenFirstWithEachArgumentInItsPlace) {
  std::vector<FakeIbv::Region> made;
  ibv_.OnRegister([&](const FakeIbv::Region& region) {
    made.push_back(region);
    if (region.dma_buf_fd >= 0) {
      EXPECT_NE(fcntl(region.dma_buf_fd, F_GETFD), -1) << "the descriptor is not open";
    }
    return 0;
  });
  LoadPeerMemoryModule();
  GpuNic* const nic = Wrap();
  EXPECT_EQ(Reach().way, DirectWay::kDmaBuf) << Reach().ToText();
  EXPECT_THAT(Reach().proof, HasSubstr("16 rounds of 65536 bytes each way"));
  made.clear();
  auto memory = *DeviceMemory::Allocate(gpu_.get(), 64 << 10);
  // Not on a page: the dma-buf begins before it.
  void* const at = reinterpret_cast<void*>(memory.address() + 100);
  auto region = nic->RegisterDevice(0, at, 5000, kRemoteWrite);
  ASSERT_TRUE(region.ok()) << region.status();
  ASSERT_EQ(made.size(), 1u);
  EXPECT_EQ(made[0].dma_buf_offset, 100u);
  EXPECT_EQ(made[0].verbs.addr, at) << "addresses mean the same on both ways";
  EXPECT_EQ(made[0].verbs.length, 5000u);
  EXPECT_EQ(made[0].access, unsigned{IBV_ACCESS_LOCAL_WRITE} | IBV_ACCESS_REMOTE_WRITE);
  EXPECT_EQ(fcntl(made[0].dma_buf_fd, F_GETFD), -1) << "the descriptor was left open";
  EXPECT_EQ((*region)->address(), reinterpret_cast<uint64_t>(at));
  EXPECT_EQ((*region)->bytes(), 5000u);
}

TEST_F(GpuNicTest, PeerMemoryIsSecondWithTheDevicePointer) {
  LoadPeerMemoryModule();
  Attribute(cuda::kDmaBuf, 0);
  GpuNic* const nic = Wrap();
  EXPECT_EQ(Reach().way, DirectWay::kPeerMemory) << Reach().ToText();
  EXPECT_THAT(Reach().dma_buf, HasSubstr("cannot give its memory to NICs as a dma-buf"));
  EXPECT_THAT(Reach().ToText(), HasSubstr("not dma-buf: "));
  std::vector<FakeIbv::Region> made;
  ibv_.OnRegister([&](const FakeIbv::Region& region) {
    made.push_back(region);
    return 0;
  });
  auto memory = *DeviceMemory::Allocate(gpu_.get(), kPage);
  auto region = nic->RegisterDevice(0, memory.data(), kPage, kLocalOnly);
  ASSERT_TRUE(region.ok()) << region.status();
  ASSERT_EQ(made.size(), 1u);
  EXPECT_EQ(made[0].dma_buf_fd, -1);
  EXPECT_EQ(made[0].verbs.addr, memory.data());
  EXPECT_EQ(made[0].verbs.length, kPage);
  EXPECT_EQ(made[0].access, 0u);
}

// It waits for all of a user's streams, and they for it.
TEST_F(GpuNicTest, TheProofLeavesTheDefaultStreamAlone) {
  const int before = cuda_->calls(kDefaultStream);
  Wrap();
  EXPECT_EQ(Reach().way, DirectWay::kDmaBuf) << Reach().ToText();
  EXPECT_EQ(cuda_->calls(kDefaultStream), before);
}

// A read is needed for the flush alone.
TEST_F(GpuNicTest, ANicWithoutReadReachesAGpuThatNeedsNoFlush) {
  device_.attributes.max_qp_init_rd_atom = 0;
  direct_.flush = false;
  Wrap();
  EXPECT_EQ(Reach().way, DirectWay::kDmaBuf) << Reach().ToText();
}

TEST_F(GpuNicTest, EachRefusalKeepsItsReason) {
  struct Case {
    const char* name;
    std::function<void()> spoil;
    const char* dma_buf;
    const char* peer_memory;
  };
  const Case kCases[] = {
      {"nothing there", [this] { Attribute(cuda::kDmaBuf, 0); },
       "cannot give its memory to NICs as a dma-buf", "no peer-memory module is loaded"},
      {"the NIC's driver is old", [this] { ibv_.Fail("ibv_reg_dmabuf_mr", EOPNOTSUPP); },
       "does not register dma-bufs", "no peer-memory module is loaded"},
      {"the GPU's driver refuses",
       [this] { cuda_->fail("cuMemGetHandleForAddressRange", cuda::kNotSupported, 99, 0); },
       "cuMemGetHandleForAddressRange", "no peer-memory module is loaded"},
      {"a module that is not for this GPU",
       [this] {
         LoadPeerMemoryModule();
         Attribute(cuda::kDmaBuf, 0);
         ibv_.OnRegister([](const FakeIbv::Region& region) {
           return region.verbs.length == (64 << 10) && (region.access & IBV_ACCESS_REMOTE_READ) != 0
                      ? EFAULT
                      : 0;
         });
       },
       "cannot give its memory to NICs as a dma-buf", "ibv_reg_mr"},
      {"switched off", [this] { direct_.dma_buf = direct_.peer_memory = false; },
       "the program's options switch off NIC access to GPU memory",
       "the program's options switch off NIC access to GPU memory"},
      {"wrong bytes", [this] { loops_.wrong_reads = true; },
       "round 0 of the test that the NIC reaches GPU memory: the NIC's test read of the",
       "no peer-memory module is loaded"},
      {"its writes fail", [this] { loops_.failing_writes = true; },
       "RDMA WRITE by the NIC to itself", "no peer-memory module is loaded"},
      {"no answer", [this] { loops_.silent = true; }, "did not end",
       "no peer-memory module is loaded"},
      {"its queue fails", [this] { ibv_.Fail("ibv_poll_cq", EIO); }, "ibv_poll_cq",
       "no peer-memory module is loaded"},
      {"no READ for the flush", [this] { device_.attributes.max_qp_init_rd_atom = 0; },
       "no RDMA READ", "no RDMA READ"},
      {"no queue pair", [this] { ibv_.Fail("ibv_create_qp", ENOMEM); }, "ibv_create_qp",
       "no peer-memory module is loaded"},
  };
  for (const Case& each : kCases) {
    SCOPED_TRACE(each.name);
    std::filesystem::remove_all(root_);
    Attribute(cuda::kDmaBuf, 1);
    direct_.dma_buf = direct_.peer_memory = true;
    each.spoil();
    GpuNic* const nic = Wrap();
    EXPECT_EQ(Reach().way, DirectWay::kStaging);
    EXPECT_THAT(Reach().dma_buf, HasSubstr(each.dma_buf));
    EXPECT_THAT(Reach().peer_memory, HasSubstr(each.peer_memory));
    const absl::Status refused = nic->ReachesDevice(0);
    EXPECT_TRUE(absl::IsUnimplemented(refused));
    EXPECT_THAT(std::string(refused.message()), HasSubstr(each.dma_buf));
    EXPECT_THAT(nic->Explain(), HasSubstr(each.peer_memory));
    EXPECT_EQ(nic->RegisterDevice(0, &root_, 8, kLocalOnly).status(), refused);
    wrapped_.reset();
    for (const char* call : {"ibv_reg_dmabuf_mr", "ibv_create_qp", "ibv_poll_cq"}) {
      ibv_.Fail(call, 0);
    }
    cuda_->fail("cuMemGetHandleForAddressRange", 0, 0, 0);
    ibv_.OnRegister(nullptr);
    loops_.wrong_reads = loops_.failing_writes = loops_.silent = false;
    device_.attributes.max_qp_init_rd_atom = 8;
    gpu_.reset();
  }
}

TEST_F(GpuNicTest, WhatPassesTheTableButReadsOldBytesIsFlushed) {
  Attribute(cuda::kComputeMajor, 9);
  Wrap();
  EXPECT_FALSE(Reach().flush.flush);
  EXPECT_EQ(loops_.flush_reads, 0);
  loops_.late_writes = true;
  Wrap();
  EXPECT_EQ(Reach().way, DirectWay::kDmaBuf) << Reach().ToText();
  EXPECT_TRUE(Reach().flush.flush);
  EXPECT_THAT(Reach().flush.why,
              HasSubstr("round 0 of the test that the NIC reaches GPU memory read old bytes"));
  // If the flush is forbidden, tensors are staged.
  direct_.flush = false;
  Wrap();
  EXPECT_EQ(Reach().way, DirectWay::kStaging);
  EXPECT_THAT(Reach().dma_buf, HasSubstr("did not arrive in the GPU's memory"));
}

// A completion queue with one queue pair on it, and a writable region of the GPU.
class FlushTest : public GpuNicTest {
 protected:
  void Open(uint8_t port = 1) {
    Wrap();
    ASSERT_EQ(Reach().way, DirectWay::kDmaBuf) << Reach().ToText();
    pairs_before_ = ibv_.queue_pairs().size();
    queue_ = *wrapped_->CreateCompletionQueue(16);
    QueuePairOptions options;
    options.completions = queue_.get();
    options.send_depth = 4;
    options.receive_depth = 8;
    options.port = port;
    pair_ = *wrapped_->CreateQueuePair(options);
    const std::vector<ReceiveWork> receives(8);
    ASSERT_TRUE(pair_->Connect(pair_->LocalAddress()).ok());
    ASSERT_TRUE(pair_->PostReceive(receives).ok());
    loops_.flush_reads = 0;
    loops_.flush_keys.clear();
  }
  void TearDown() override {
    region_.reset();
    memory_ = DeviceMemory();
    pair_.reset();
    queue_.reset();
  }
  void MakeWritable() {
    memory_ = *DeviceMemory::Allocate(gpu_.get(), kPage);
    region_ = *wrapped_->RegisterDevice(0, memory_.data(), kPage, kRemoteWrite);
  }
  void Arrive(uint32_t immediate) {
    ibv_.CompleteReceive(ibv_.queue_pairs().back(), IBV_WC_RECV_RDMA_WITH_IMM, 100, immediate);
  }
  // What one Poll() shows: the immediates.
  std::vector<uint32_t> Poll() {
    Completion seen[8];
    auto count = queue_->Poll(absl::MakeSpan(seen));
    EXPECT_TRUE(count.ok()) << count.status();
    std::vector<uint32_t> immediates;
    for (size_t i = 0; count.ok() && i < *count; ++i) immediates.push_back(seen[i].immediate);
    return immediates;
  }

  size_t pairs_before_ = 0;
  std::unique_ptr<CompletionQueue> queue_;
  std::unique_ptr<QueuePair> pair_;
  DeviceMemory memory_;
  std::unique_ptr<Region> region_;
};

TEST_F(FlushTest, TheLoopBackQueuePairIsConnectedToItselfAndReadsOneWord) {
  Open();
  MakeWritable();
  const auto pairs = ibv_.queue_pairs();
  ASSERT_EQ(pairs.size(), pairs_before_ + 3);
  FakeIbv::QueuePair* const far = pairs[pairs_before_];
  FakeIbv::QueuePair* const near = pairs[pairs_before_ + 1];
  EXPECT_EQ(far->queue, near->queue);
  EXPECT_EQ(near->queue, pairs.back()->queue) << "whoever sleeps on the queue is woken by a flush";
  ASSERT_EQ(near->modified.size(), 3u);  // INIT, RTR, RTS.
  EXPECT_EQ(near->modified[0].qp_state, IBV_QPS_INIT);
  EXPECT_NE(far->modified[0].qp_access_flags & IBV_ACCESS_REMOTE_READ, 0u);
  EXPECT_EQ(near->modified[1].dest_qp_num, far->verbs.qp_num);
  EXPECT_EQ(far->modified[1].dest_qp_num, near->verbs.qp_num);
  EXPECT_GE(far->modified[1].max_dest_rd_atomic, 1);
  EXPECT_EQ(near->modified[2].qp_state, IBV_QPS_RTS);
  EXPECT_GE(near->modified[2].max_rd_atomic, 1);
  Arrive(7);
  Poll();
  ASSERT_EQ(near->history.size(), 1u);
  const FakeIbv::PostedSend& read = near->history[0];
  EXPECT_EQ(read.work.opcode, IBV_WR_RDMA_READ);
  EXPECT_NE(read.work.send_flags & IBV_SEND_SIGNALED, 0u);
  ASSERT_EQ(read.entries.size(), 1u);
  EXPECT_EQ(read.entries[0].length, 8u);
  bool found = false;
  for (const FakeIbv::Region& region : ibv_.regions()) {
    if (region.verbs.rkey != read.work.wr.rdma.rkey) continue;
    found = true;
    EXPECT_GE(region.dma_buf_fd, 0) << "it has to read the GPU, not host memory";
    EXPECT_EQ(read.work.wr.rdma.remote_addr, reinterpret_cast<uint64_t>(region.verbs.addr));
    EXPECT_EQ(region.access, unsigned{IBV_ACCESS_REMOTE_READ});
  }
  EXPECT_TRUE(found);
}

TEST_F(FlushTest, WhatLandedIsShownOnceItWasFlushed) {
  Open();
  MakeWritable();
  loops_.silent = true;
  Arrive(1);
  Arrive(2);
  EXPECT_TRUE(Poll().empty());
  EXPECT_TRUE(Poll().empty());
  // Came while the first flush was under way, which says nothing about it.
  Arrive(3);
  EXPECT_TRUE(Poll().empty());
  loops_.silent = false;
  FakeIbv::QueuePair* const near = ibv_.queue_pairs()[pairs_before_ + 1];
  EXPECT_EQ(near->history.size(), 1u) << "one for both";
  loops_.Serve(near);
  EXPECT_THAT(Poll(), ::testing::ElementsAre(1, 2));
  EXPECT_THAT(Poll(), ::testing::ElementsAre(3));
  EXPECT_EQ(near->history.size(), 2u);
  EXPECT_TRUE(Poll().empty());
  const FlushCounters counters = wrapped_->flushes();
  EXPECT_EQ(counters.flushes, 2u);
  EXPECT_GT(counters.ns, 0u);
  EXPECT_GE(counters.ns, counters.ns_most);
  EXPECT_THAT(wrapped_->Explain(), HasSubstr("flushes by mlx5_0: 2, "));
}

TEST_F(FlushTest, TheLoopBackQueuePairIsOfAPortThatIsUp) {
  device_.attributes.phys_port_cnt = 2;
  device_.ports.push_back(device_.ports[0]);
  device_.ports[0].attributes.state = IBV_PORT_DOWN;
  Open(2);
  const auto pairs = ibv_.queue_pairs();
  ASSERT_EQ(pairs.size(), pairs_before_ + 3);
  EXPECT_EQ(pairs[pairs_before_]->modified[0].port_num, 2);
  EXPECT_EQ(pairs[pairs_before_ + 1]->modified[0].port_num, 2);
}

TEST_F(FlushTest, NobodyWaitsWhereNoPeerCanWriteAGpu) {
  Open();
  Arrive(1);
  EXPECT_THAT(Poll(), ::testing::ElementsAre(1));
  MakeWritable();
  Arrive(2);
  Poll();
  EXPECT_EQ(loops_.flush_reads, 1);
  Poll();
  region_.reset();
  Arrive(3);
  EXPECT_THAT(Poll(), ::testing::ElementsAre(3));
  EXPECT_EQ(loops_.flush_reads, 1);
}

TEST_F(FlushTest, AFlushThatFailsLosesTheNic) {
  Open();
  MakeWritable();
  loops_.silent = true;
  Arrive(1);
  EXPECT_TRUE(Poll().empty());
  ibv_.CompleteSends(ibv_.queue_pairs()[pairs_before_ + 1], 1, IBV_WC_REM_ACCESS_ERR);
  Completion seen[8];
  auto count = queue_->Poll(absl::MakeSpan(seen));
  EXPECT_TRUE(absl::IsUnavailable(count.status())) << count.status();
  EXPECT_EQ(wrapped_->flushes().failed, 1u);
}

TEST_F(FlushTest, AQueueThatFailsSaysSo) {
  Open();
  MakeWritable();
  ibv_.Fail("ibv_poll_cq", EIO);
  Completion seen[8];
  EXPECT_FALSE(queue_->Poll(absl::MakeSpan(seen)).ok());
}

TEST_F(FlushTest, EveryNicFlushesForItself) {
  Open();
  MakeWritable();
  // The second NIC of a striped tensor.
  FakeIbv other_ibv;
  other_ibv.AddDevice("mlx5_1");
  Loops other_loops(&other_ibv, cuda_);
  {
    IbvNicOptions options;
    options.calls = other_ibv.Calls();
    options.choice.sysfs_root = root_;
    auto other = GpuNic::Wrap(std::shared_ptr<Nic>(*OpenIbvNic(options)), {gpu_.get()}, direct_);
    auto region = *other->RegisterDevice(0, memory_.data(), kPage, kRemoteWrite);
    auto queue = *other->CreateCompletionQueue(16);
    QueuePairOptions pair_options;
    pair_options.completions = queue.get();
    pair_options.send_depth = 4;
    pair_options.receive_depth = 8;
    auto pair = *other->CreateQueuePair(pair_options);
    const std::vector<ReceiveWork> receives(1);
    ASSERT_TRUE(pair->Connect(pair->LocalAddress()).ok());
    ASSERT_TRUE(pair->PostReceive(receives).ok());
    other_loops.flush_reads = 0;
    Arrive(1);
    other_ibv.CompleteReceive(other_ibv.queue_pairs().back(), IBV_WC_RECV_RDMA_WITH_IMM, 100, 1);
    Poll();
    Completion seen;
    ASSERT_TRUE(queue->Poll(absl::MakeSpan(&seen, 1)).ok());
    EXPECT_EQ(loops_.flush_reads, 1);
    EXPECT_EQ(other_loops.flush_reads, 1);
    Poll();
    ASSERT_TRUE(queue->Poll(absl::MakeSpan(&seen, 1)).ok());
  }
  EXPECT_EQ(other_ibv.live(), 0);
}

TEST_F(GpuNicTest, TheCheckShowsEachPairWithItsFigures) {
  GdrCheckOptions options;
  options.cuda_library = "tests/doubles/cuda/libfake_cuda.so";
  options.ibv = ibv_.Calls();
  options.direct = direct_;
  auto findings = CheckGdr(options);
  ASSERT_TRUE(findings.ok()) << findings.status();
  ASSERT_EQ(findings->size(), 2u);  // Two pretend cards.
  for (const GdrFinding& finding : *findings) {
    EXPECT_EQ(finding.reach.way, DirectWay::kDmaBuf) << finding.ToText();
    EXPECT_GT(finding.write_gb_per_s, 0);
    EXPECT_GT(finding.read_gb_per_s, 0);
    EXPECT_GT(finding.flush_us, 0);
    EXPECT_THAT(finding.ToText(), HasSubstr("a flush takes "));
    EXPECT_THAT(finding.ToText(), HasSubstr("flushed: below compute capability 9.0"));
  }
  options.measure = false;
  findings = CheckGdr(options);
  ASSERT_TRUE(findings.ok()) << findings.status();
  EXPECT_EQ(findings->front().reach.way, DirectWay::kDmaBuf);
  EXPECT_EQ(findings->front().flush_us, 0);
  options.measure = true;
  Attribute(cuda::kDmaBuf, 0);
  findings = CheckGdr(options);
  ASSERT_TRUE(findings.ok()) << findings.status();
  EXPECT_THAT(findings->front().ToText(), HasSubstr("staging; dma-buf: "));
}

// A NIC may have no queue pair left when the way is proved, or when it is measured.
TEST_F(GpuNicTest, TheCheckSaysWhatCouldNotBeMeasured) {
  int unmeasured = 0;
  for (int most = 0; most < 8; ++most) {
    int made = 0;
    IbvCalls calls = ibv_.Calls();
    calls.create_qp = [&made, most, create = calls.create_qp](
                          ibv_pd* domain, ibv_qp_init_attr* attributes) -> ibv_qp* {
      if (made++ < most) return create(domain, attributes);
      errno = ENOMEM;
      return nullptr;
    };
    GdrCheckOptions options;
    options.cuda_library = "tests/doubles/cuda/libfake_cuda.so";
    options.ibv = calls;
    options.direct = direct_;
    const auto findings = CheckGdr(options);
    ASSERT_TRUE(findings.ok()) << findings.status();
    const GdrFinding& first = findings->front();
    if (first.reach.way == DirectWay::kStaging || first.flush_us > 0) continue;
    ++unmeasured;
    EXPECT_THAT(first.ToText(), HasSubstr("but measuring failed: "));
  }
  EXPECT_GT(unmeasured, 0);
}

TEST_F(GpuNicTest, TheCheckSaysWhatTheMachineLacks) {
  GdrCheckOptions options;
  options.cuda_library = "libno_such_driver.so";
  EXPECT_THAT(std::string(CheckGdr(options).status().message()),
              StartsWith("the CUDA driver cannot be loaded"));
  options.cuda_library = "tests/doubles/cuda/libfake_cuda.so";
  FakeIbv none;
  options.ibv = none.Calls();
  EXPECT_THAT(std::string(CheckGdr(options).status().message()),
              HasSubstr("there is no RDMA device"));
  options.ibv = ibv_.Calls();
  device_.ports[0].attributes.state = IBV_PORT_DOWN;
  EXPECT_THAT(std::string(CheckGdr(options).status().message()),
              HasSubstr("no RDMA port is usable"));
}

}  // namespace
}  // namespace tryst
