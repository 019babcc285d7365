// A CUDA driver of two cards that checks every argument. FAKE_CUDA_INIT is what cuInit
// returns, FAKE_CUDA_DEVICES how many cards there are (4 at most), and with FAKE_CUDA_PEERS=none
// no card has a way to the memory of another.

#include "tests/doubles/cuda/fake_cuda.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "gpu/cuda_api.h"
#include "gpu/gather_piece.h"
#include "gpu/strided_runs.h"

// ---- CUDA's words, as far as the strided kernel has them ----

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)

namespace {

struct Index {
  unsigned x = 0;
};
Index threadIdx, blockIdx, blockDim, gridDim;  // Guarded by the state's lock.

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

}  // namespace

#include "gpu/strided_kernels.cuh"

namespace {

using tryst::cuda::AccessDescription;
using tryst::cuda::Address;
using tryst::cuda::Allocation;
using tryst::cuda::AllocationProperties;
using tryst::cuda::HostFunction;
using tryst::cuda::IpcHandle;
using tryst::cuda::Uuid;

constexpr int kOk = 0;
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kInvalidDevice = 101;
constexpr int kInvalidContext = 201;
constexpr int kPeerAccessUnsupported = 217;
constexpr int kInvalidHandle = 400;
constexpr int kNotReady = 600;
constexpr int kFirstDevice = 40;
constexpr int kMostDevices = 4;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kGranularity = 16 * kPage;  // Virtual memory has it.
constexpr intptr_t kGatherFunction = 0x78;
constexpr intptr_t kCopyFunction = 0x79;
constexpr intptr_t kStandbyFunction = 0x7a;
constexpr intptr_t kStridedFunction = 0x7b;
constexpr int kStandbyPatience = 40;  // Looks.

// Device memory: a range that nobody may touch, and the bytes elsewhere.
struct Memory {
  uint64_t address = 0;
  uint64_t bytes = 0;
  char* backing = nullptr;
  int fd = -1;
  int device = 0;
  uint64_t id = 0;
  bool legacy = true;  // Has an IPC handle.
  bool imported = false;
  bool pooled = false;
  Allocation allocation = 0;  // What is mapped there, if it is virtual memory.
  bool accessible = true;     // Virtual memory is not, until somebody says so.
};

// What cuMemCreate makes. It lasts while there are handles or mappings.
struct Physical {
  uint64_t bytes = 0;
  int fd = -1;
  int device = 0;
  int handle_types = 0;
  int handles = 1;
  int mappings = 0;
};

// A range of addresses for virtual memory, and where the bytes of all that is mapped in it lie.
struct Range {
  uint64_t bytes = 0;
  char* backing = nullptr;
};

struct FakeEvent {
  uint64_t recorded = 0;  // How often.
  uint64_t reached = 0;
};

struct Work {
  std::function<void()> run;
  FakeEvent* waits_for = nullptr;
  uint64_t until = 0;
};

struct FakeStream {
  int device = 0;
  std::deque<Work> works;
};

struct Failure {
  int result = 0;
  int times = 0;
  int after = 0;
};

struct State {
  tryst::Mutex mu;
  std::map<uint64_t, Memory> memory;  // By address.
  std::map<uint64_t, uint64_t> pinned;
  std::map<uint64_t, Range> reserved;
  std::map<Allocation, Physical> physical;
  std::set<FakeEvent*> events;
  std::vector<FakeEvent*> outlived;  // By works that refer to them.
  std::set<FakeStream*> streams;
  std::map<std::string, Failure> failures;
  std::map<std::string, int> calls;
  std::map<int, int> attributes;
  std::string complaints;
  int blocking = 0;
  bool held = false;
  bool captures = false;
  uint64_t next_id = 1;
  int retained[kMostDevices] = {};
  FakeStream* default_streams[kMostDevices] = {};
};

// Never destroyed: threads may still call at exit.
State& state() {
  static State* const the_state = new State();
  return *the_state;
}

thread_local intptr_t current_device = -1;

int Complain(const char* call, const std::string& what, int result) {
  state().complaints += std::string(call) + ": " + what + "\n";
  return result;
}

// Counts the call; what it is to fail with, or 0.
int Enter(const char* call) {
  State& s = state();
  ++s.calls[call];
  auto found = s.failures.find(call);
  if (found == s.failures.end()) return kOk;
  Failure& failure = found->second;
  if (failure.after > 0) {
    --failure.after;
    return kOk;
  }
  if (failure.times <= 0) return kOk;
  --failure.times;
  return failure.result;
}

#define ENTER()                       \
  tryst::MutexLock lock(&state().mu); \
  if (const int failed = Enter(__func__); failed != kOk) return failed

#define ENTER_WITH_CONTEXT() \
  ENTER();                   \
  if (current_device < 0) return Complain(__func__, "no context is current", kInvalidContext)

Memory* FindMemory(uint64_t address, uint64_t bytes) {
  auto after = state().memory.upper_bound(address);
  if (after == state().memory.begin()) return nullptr;
  Memory& found = std::prev(after)->second;
  if (address + bytes > found.address + found.bytes) return nullptr;
  return &found;
}

// Null: the range is not reserved whole.
Range* FindRange(uint64_t address, uint64_t bytes, uint64_t* begin) {
  auto after = state().reserved.upper_bound(address);
  if (after == state().reserved.begin()) return nullptr;
  auto found = std::prev(after);
  if (address + bytes > found->first + found->second.bytes) return nullptr;
  *begin = found->first;
  return &found->second;
}

// Whether all of a range is mapped, by whatever chunks; does `visit` to each of them.
bool ForChunks(uint64_t address, uint64_t bytes, const std::function<void(Memory*)>& visit) {
  for (uint64_t at = address; at < address + bytes;) {
    Memory* chunk = FindMemory(at, 1);
    if (chunk == nullptr || chunk->allocation == 0) return false;
    visit(chunk);
    at = chunk->address + chunk->bytes;
  }
  return true;
}

// Where the bytes of an address really are; null: it is not whole in anything known.
char* Reach(uint64_t address, uint64_t bytes) {
  uint64_t begin = 0;
  if (Range* range = FindRange(address, bytes, &begin)) {
    bool accessible = true;
    const bool whole =
        ForChunks(address, bytes, [&](Memory* chunk) { accessible &= chunk->accessible; });
    return whole && accessible ? range->backing + (address - begin) : nullptr;
  }
  if (Memory* memory = FindMemory(address, bytes)) {
    return memory->backing + (address - memory->address);
  }
  auto after = state().pinned.upper_bound(address);
  if (after == state().pinned.begin()) return nullptr;
  auto found = std::prev(after);
  if (address + bytes > found->first + found->second) return nullptr;
  return reinterpret_cast<char*>(address);
}

void* NewAddresses(uint64_t bytes) {
  return mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

bool MapMemory(int fd, uint64_t bytes, Memory* made) {
  void* forbidden = NewAddresses(bytes);
  void* backing = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (forbidden == MAP_FAILED || backing == MAP_FAILED) return false;
  made->address = reinterpret_cast<uint64_t>(forbidden);
  made->bytes = bytes;
  made->backing = static_cast<char*>(backing);
  made->fd = fd;
  made->id = state().next_id++;
  made->device = static_cast<int>(current_device);
  return true;
}

int NewMemoryFd(uint64_t bytes) {
  const int fd = memfd_create("fake-gpu", MFD_CLOEXEC);
  if (fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

Memory* NewAllocation(const char* call, uint64_t bytes, Address* address) {
  if (bytes == 0) {
    Complain(call, "no bytes", 0);
    return nullptr;
  }
  const uint64_t whole = (bytes + kPage - 1) / kPage * kPage;
  const int fd = NewMemoryFd(whole);
  Memory made;
  if (fd < 0 || !MapMemory(fd, whole, &made)) return nullptr;
  made.bytes = bytes;
  memset(made.backing, 0xdb, bytes);
  *address = made.address;
  return &(state().memory[made.address] = made);
}

Allocation NewPhysical(int fd, uint64_t bytes, int device, int handle_types) {
  const Allocation made = 0xa0000 + state().next_id++;
  Physical& physical = state().physical[made];
  physical.bytes = bytes;
  physical.fd = fd;
  physical.device = device;
  physical.handle_types = handle_types;
  return made;
}

void DropUnused(std::map<Allocation, Physical>::iterator physical) {
  if (physical->second.handles > 0 || physical->second.mappings > 0) return;
  close(physical->second.fd);
  state().physical.erase(physical);
}

bool Runnable(const FakeStream& stream) {
  return !stream.works.empty() &&
         (stream.works.front().waits_for == nullptr ||
          stream.works.front().waits_for->reached >= stream.works.front().until);
}

// Does at most `most` works, one stream after the other.
void Advance(int most) {
  State& s = state();
  if (s.held) return;
  bool any = true;
  while (any && most > 0) {
    any = false;
    for (FakeStream* stream : s.streams) {
      if (most <= 0 || !Runnable(*stream)) continue;
      Work work = std::move(stream->works.front());
      stream->works.pop_front();
      if (work.run) work.run();
      any = true;
      --most;
    }
  }
}

FakeStream* StreamOf(const char* call, tryst::cuda::Stream handle) {
  auto* stream = reinterpret_cast<FakeStream*>(handle);
  if (stream == nullptr && current_device >= 0) {  // The device's default one.
    ++state().calls[tryst::kDefaultStream];
    FakeStream*& own = state().default_streams[current_device];
    if (own == nullptr) own = *state().streams.insert(new FakeStream()).first;
    return own;
  }
  if (state().streams.count(stream) == 0) {
    Complain(call, "no such stream", 0);
    return nullptr;
  }
  return stream;
}

FakeEvent* EventOf(const char* call, tryst::cuda::Event handle) {
  auto* event = reinterpret_cast<FakeEvent*>(handle);
  if (state().events.count(event) == 0) {
    Complain(call, "no such event", 0);
    return nullptr;
  }
  return event;
}

int Devices() {
  const char* count = getenv("FAKE_CUDA_DEVICES");
  return count == nullptr ? 2 : std::clamp(atoi(count), 1, kMostDevices);
}

bool HavePeers() {
  const char* peers = getenv("FAKE_CUDA_PEERS");
  return peers == nullptr || strcmp(peers, "none") != 0;
}

int IndexOf(int device) {
  return device >= kFirstDevice && device < kFirstDevice + Devices() ? device - kFirstDevice : -1;
}

// As Reach, for a kernel on a card: what lies on another it reaches only where there is a way.
char* ReachByKernel(intptr_t device, uint64_t address, uint64_t bytes) {
  const Memory* memory = FindMemory(address, bytes);
  if (memory != nullptr && memory->device != device && !HavePeers()) return nullptr;
  return Reach(address, bytes);
}

void RunCopy(intptr_t device, const tryst::GatherPiece& piece, uint64_t flag,
             unsigned long long value) {
  char* to = ReachByKernel(device, piece.to, piece.bytes);
  const char* from = ReachByKernel(device, piece.from, piece.bytes);
  auto* word = reinterpret_cast<unsigned long long*>(Reach(flag, sizeof(value)));
  if (to == nullptr || from == nullptr || word == nullptr) {
    Complain("tryst_copy", "a piece or its flag is in no memory", 0);
    return;
  }
  memmove(to, from, piece.bytes);
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

struct FakeStandby {
  intptr_t device = 0;
  FakeStream* stream = nullptr;
  uint64_t words = 0;
  uint64_t blocks = 0;
  uint64_t next = 0;
  uint64_t launch = 0;
  int looks = 0;
};

// One look at what to copy, for all blocks; then it stays in front of its stream, or leaves.
void RunStandby(FakeStandby standby) {
  auto* words =
      reinterpret_cast<tryst::StandbyWords*>(Reach(standby.words, sizeof(tryst::StandbyWords)));
  const auto* const blocks = reinterpret_cast<const tryst::StandbyBlocks*>(
      ReachByKernel(standby.device, standby.blocks, sizeof(tryst::StandbyBlocks)));
  if (words == nullptr || blocks == nullptr || blocks->counts.came != 0) {
    Complain("tryst_standby",
             "its words or those of its blocks are in no memory, or were not cleared", 0);
    return;
  }
  __atomic_store_n(&words->came, standby.launch, __ATOMIC_RELEASE);
  unsigned long long piece[3];
  bool whole = true;
  for (int i = 0; i < 3; ++i) {
    piece[i] =
        __atomic_load_n(&words->slots[standby.next % tryst::kStandbySlots][i], __ATOMIC_ACQUIRE);
    whole &= piece[i] >> tryst::kStandbyTagShift == (standby.next & 0xffff);
    piece[i] &= (1ull << tryst::kStandbyTagShift) - 1;
  }
  if (whole) {
    RunCopy(standby.device, {piece[0], piece[1], piece[2]},
            reinterpret_cast<uint64_t>(&words->ended), standby.next);
    ++standby.next;
    standby.looks = 0;
  } else if (++standby.looks > kStandbyPatience) {
    __atomic_store_n(&words->left, standby.launch, __ATOMIC_RELEASE);
    return;
  }
  standby.stream->works.push_front({[standby] { RunStandby(standby); }, nullptr, 0});
}

// Whether a GPU could load and store the units of one end.
bool IsAligned(const tryst::StridedRuns& runs, unsigned long long first, unsigned alignment,
               const long long* steps) {
  long long all = static_cast<long long>(first);
  for (unsigned i = 0; i < runs.loops; ++i) all |= steps[i];
  return all % alignment == 0;
}

// Where all that the runs touch of one end really lies, in the place of its first run. 0: in no
// memory.
unsigned long long Translated(intptr_t device, const tryst::StridedRuns& runs,
                              unsigned long long first, unsigned unit, const long long* steps) {
  long long low = 0, high = static_cast<long long>(runs.units * unit);
  for (unsigned i = 0; i < runs.loops; ++i) {
    const long long reach = steps[i] * static_cast<long long>(runs.counts[i] - 1);
    (reach < 0 ? low : high) += reach;
  }
  const char* const lowest = ReachByKernel(device, first + static_cast<unsigned long long>(low),
                                           static_cast<uint64_t>(high - low));
  return lowest == nullptr ? 0 : reinterpret_cast<unsigned long long>(lowest - low);
}

// The kernel itself, thread after thread.
void RunStrided(intptr_t device, tryst::StridedRuns runs, unsigned blocks, unsigned threads) {
  const unsigned from_element = runs.kind == tryst::kFloatToBfloat16  ? 4
                                : runs.kind == tryst::kHalfToBfloat16 ? 2
                                : runs.kind == tryst::kDoubleToFloat  ? 8
                                                                      : runs.from_unit;
  const unsigned to_element = runs.kind == tryst::kCopies          ? runs.to_unit
                              : runs.kind == tryst::kDoubleToFloat ? 4
                                                                   : 2;
  if (!IsAligned(runs, runs.from, from_element, runs.from_steps) ||
      !IsAligned(runs, runs.to, to_element, runs.to_steps)) {
    Complain("tryst_strided", "a unit is not aligned", 0);
    return;
  }
  runs.to = Translated(device, runs, runs.to, runs.to_unit, runs.to_steps);
  runs.from = Translated(device, runs, runs.from, runs.from_unit, runs.from_steps);
  if (runs.to == 0 || runs.from == 0) {
    Complain("tryst_strided", "a run is in no memory", 0);
    return;
  }
  // As many as there are units, and some more; the others would find nothing to do.
  gridDim.x = static_cast<unsigned>(
      std::min<unsigned long long>(blocks, runs.runs * runs.units / threads + 1));
  blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
    for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) tryst_strided(runs);
  }
}

void RunGather(intptr_t device, uint64_t table, unsigned count) {
  for (unsigned i = 0; i < count; ++i) {
    const char* at = Reach(table + i * sizeof(tryst::GatherPiece), sizeof(tryst::GatherPiece));
    tryst::GatherPiece piece{};
    if (at != nullptr) memcpy(&piece, at, sizeof(piece));
    char* to = ReachByKernel(device, piece.to, piece.bytes);
    const char* from = ReachByKernel(device, piece.from, piece.bytes);
    if (at == nullptr || to == nullptr || from == nullptr) {
      Complain("tryst_gather", "a piece is in no memory", 0);
      return;
    }
    memmove(to, from, piece.bytes);
  }
}

}  // namespace

extern "C" {

int cuInit(unsigned flags) {
  ENTER();
  const char* result = getenv("FAKE_CUDA_INIT");
  if (flags != 0) return kInvalidValue;
  return result != nullptr ? atoi(result) : kOk;
}

int cuDriverGetVersion(int* version) {
  ENTER();
  *version = 13000;
  return kOk;
}

int cuGetErrorString(int error, const char** text) {
  static const std::map<int, const char*> kTexts = {{1, "invalid argument"},
                                                    {2, "out of memory"},
                                                    {100, "no CUDA-capable device is detected"},
                                                    {700, "an illegal memory access"},
                                                    {801, "operation not supported"}};
  auto found = kTexts.find(error);
  if (found == kTexts.end()) return kInvalidValue;
  *text = found->second;
  return kOk;
}

int cuDeviceGetCount(int* count) {
  ENTER();
  *count = Devices();
  return kOk;
}

int cuDeviceGet(int* device, int ordinal) {
  ENTER();
  if (ordinal < 0 || ordinal >= Devices()) return kInvalidDevice;
  *device = kFirstDevice + ordinal;
  return kOk;
}

int cuDeviceGetName(char* name, int bytes, int device) {
  ENTER();
  snprintf(name, static_cast<size_t>(bytes), "Card %d", device);
  return kOk;
}

int cuDeviceGetPCIBusId(char* id, int bytes, int device) {
  ENTER();
  snprintf(id, static_cast<size_t>(bytes), "0000:%02X:00.0", device);
  return kOk;
}

int cuDeviceGetUuid_v2(Uuid* uuid, int device) {
  ENTER();
  memset(uuid->bytes, device, sizeof(uuid->bytes));
  return kOk;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  ENTER();
  if (IndexOf(device) < 0) return kInvalidDevice;
  static const std::map<int, int> kValues = {{75, 9},  {76, 0},  {102, 1}, {103, 1},
                                             {113, 1}, {116, 1}, {118, 0}, {124, 1}};
  auto changed = state().attributes.find(attribute);
  if (changed != state().attributes.end()) {
    *value = changed->second;
    return kOk;
  }
  auto found = kValues.find(attribute);
  if (found == kValues.end()) return Complain(__func__, "an attribute we do not use", 1);
  *value = found->second;
  return kOk;
}

int cuDeviceTotalMem_v2(size_t* bytes, int device) {
  ENTER();
  *bytes = static_cast<size_t>(device) << 30;
  return kOk;
}

int cuDeviceCanAccessPeer(int* can, int device, int peer) {
  ENTER();
  if (IndexOf(device) < 0 || IndexOf(peer) < 0 || device == peer) {
    return Complain(__func__, "two different devices are wanted", kInvalidDevice);
  }
  *can = HavePeers();
  return kOk;
}

int cuDevicePrimaryCtxRetain(tryst::cuda::Context* context, int device) {
  ENTER();
  const int index = IndexOf(device);
  if (index < 0) return kInvalidDevice;
  ++state().retained[index];
  *context = reinterpret_cast<tryst::cuda::Context>(static_cast<intptr_t>(index + 1));
  return kOk;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
  ENTER();
  if (IndexOf(device) < 0) return kInvalidDevice;
  if (--state().retained[IndexOf(device)] < 0) {
    return Complain(__func__, "released more often than retained", kInvalidContext);
  }
  return kOk;
}

int cuCtxSetCurrent(tryst::cuda::Context context) {
  ENTER();
  const intptr_t index = reinterpret_cast<intptr_t>(context) - 1;
  if (index < 0 || index >= Devices() || state().retained[index] <= 0) {
    return Complain(__func__, "not a context in use", kInvalidContext);
  }
  current_device = index;
  return kOk;
}

int cuCtxEnablePeerAccess(tryst::cuda::Context peer, unsigned flags) {
  ENTER_WITH_CONTEXT();
  if (flags != 0 || reinterpret_cast<intptr_t>(peer) - 1 == current_device) return kInvalidValue;
  return kOk;
}

int cuMemAlloc_v2(Address* address, size_t bytes) {
  ENTER_WITH_CONTEXT();
  return NewAllocation(__func__, bytes, address) != nullptr ? kOk : kOutOfMemory;
}

int cuMemAllocAsync(Address* address, size_t bytes, tryst::cuda::Stream handle) {
  ENTER_WITH_CONTEXT();
  if (StreamOf(__func__, handle) == nullptr) return kInvalidHandle;
  Memory* made = NewAllocation(__func__, bytes, address);
  if (made == nullptr) return kOutOfMemory;
  made->legacy = false;
  made->pooled = true;
  return kOk;
}

int cuMemFreeAsync(Address address, tryst::cuda::Stream handle) {
  ENTER_WITH_CONTEXT();
  FakeStream* stream = StreamOf(__func__, handle);
  auto found = state().memory.find(address);
  if (stream == nullptr || found == state().memory.end() || !found->second.pooled) {
    return Complain(__func__, "not of a pool", kInvalidValue);
  }
  stream->works.push_back({[address] { state().memory.erase(address); }, nullptr, 0});
  return kOk;
}

int cuMemFree_v2(Address address) {
  ENTER_WITH_CONTEXT();
  auto found = state().memory.find(address);
  if (found == state().memory.end() || found->second.imported || found->second.allocation != 0) {
    return Complain(__func__, "not an allocation", kInvalidValue);
  }
  memset(found->second.backing, 0xdd, found->second.bytes);
  // The ranges stay, so that a late access is found.
  close(found->second.fd);
  state().memory.erase(found);
  return kOk;
}

int cuMemGetAddressRange_v2(Address* base, size_t* bytes, Address address) {
  ENTER_WITH_CONTEXT();
  Memory* memory = FindMemory(address, 1);
  if (memory == nullptr) return Complain(__func__, "not device memory", kInvalidValue);
  *base = memory->address;
  *bytes = memory->bytes;
  return kOk;
}

int cuPointerGetAttribute(void* value, int attribute, Address address) {
  ENTER_WITH_CONTEXT();
  Memory* memory = FindMemory(address, 1);
  if (memory == nullptr) return kInvalidValue;
  if (attribute == tryst::cuda::kPointerBufferId) {
    memcpy(value, &memory->id, sizeof(memory->id));
  } else if (attribute == tryst::cuda::kPointerBlockId) {
    const uint64_t block = memory->allocation != 0 ? memory->allocation : memory->id;
    memcpy(value, &block, sizeof(block));
  } else if (attribute == tryst::cuda::kPointerHasIpcHandle) {
    const int has = memory->legacy ? 1 : 0;
    memcpy(value, &has, sizeof(has));
  } else if (attribute == tryst::cuda::kPointerPool) {
    const void* const pool = memory->pooled ? &state() : nullptr;
    memcpy(value, &pool, sizeof(pool));
  } else if (attribute == tryst::cuda::kPointerMemoryType) {
    const unsigned type = tryst::cuda::kMemoryTypeDevice;
    memcpy(value, &type, sizeof(type));
  } else if (attribute == tryst::cuda::kPointerOrdinal) {
    memcpy(value, &memory->device, sizeof(memory->device));
  } else {
    return Complain(__func__, "an attribute we do not use", kInvalidValue);
  }
  return kOk;
}

int cuMemHostAlloc(void** address, size_t bytes, unsigned flags) {
  ENTER_WITH_CONTEXT();
  if (bytes == 0 || flags != 3) return Complain(__func__, "bytes or flags", kInvalidValue);
  *address = aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
  state().pinned[reinterpret_cast<uint64_t>(*address)] = bytes;
  return kOk;
}

int cuMemFreeHost(void* address) {
  ENTER_WITH_CONTEXT();
  if (state().pinned.erase(reinterpret_cast<uint64_t>(address)) == 0) {
    return Complain(__func__, "not pinned memory", kInvalidValue);
  }
  free(address);
  return kOk;
}

int cuMemHostRegister_v2(void* address, size_t bytes, unsigned flags) {
  ENTER_WITH_CONTEXT();
  const uint64_t at = reinterpret_cast<uint64_t>(address);
  if (bytes == 0 || (flags & ~8u) != 3) return Complain(__func__, "bytes or flags", kInvalidValue);
  if (at % kPage != 0) return Complain(__func__, "not on a page", kInvalidValue);
  if (!state().pinned.emplace(at, bytes).second) return 712;
  return kOk;
}

int cuMemHostUnregister(void* address) {
  ENTER_WITH_CONTEXT();
  if (state().pinned.erase(reinterpret_cast<uint64_t>(address)) == 0) {
    return Complain(__func__, "not registered", kInvalidValue);
  }
  return kOk;
}

int cuMemAddressReserve(Address* address, size_t bytes, size_t alignment, Address wish,
                        unsigned long long flags) {
  ENTER_WITH_CONTEXT();
  if (bytes == 0 || bytes % kGranularity != 0 || alignment != 0 || wish != 0 || flags != 0) {
    return Complain(__func__, "arguments", kInvalidValue);
  }
  void* const at = NewAddresses(bytes);
  void* const backing = NewAddresses(bytes);
  if (at == MAP_FAILED || backing == MAP_FAILED) return kOutOfMemory;
  *address = reinterpret_cast<uint64_t>(at);
  state().reserved[*address] = {bytes, static_cast<char*>(backing)};
  return kOk;
}

int cuMemAddressFree(Address address, size_t bytes) {
  ENTER_WITH_CONTEXT();
  auto found = state().reserved.find(address);
  if (found == state().reserved.end() || found->second.bytes != bytes) {
    return Complain(__func__, "not a range", kInvalidValue);
  }
  auto mapped = state().memory.lower_bound(address);
  if (mapped != state().memory.end() && mapped->first < address + bytes) {
    return Complain(__func__, "something is mapped in it", kInvalidValue);
  }
  munmap(reinterpret_cast<void*>(address), bytes);
  munmap(found->second.backing, bytes);
  state().reserved.erase(found);
  return kOk;
}

int cuMemGetAllocationGranularity(size_t* bytes, const AllocationProperties* properties,
                                  int option) {
  ENTER_WITH_CONTEXT();
  if (properties->type != 1 || option != 0) return Complain(__func__, "arguments", kInvalidValue);
  *bytes = kGranularity;
  return kOk;
}

int cuMemCreate(Allocation* made, size_t bytes, const AllocationProperties* properties,
                unsigned long long flags) {
  ENTER_WITH_CONTEXT();
  if (flags != 0 || bytes % kGranularity != 0 || properties->type != 1 ||
      (properties->handle_types & ~9) != 0 || properties->location.type != 1 ||
      properties->location.id != current_device || properties->windows != nullptr) {
    return Complain(__func__, "arguments", kInvalidValue);
  }
  const int fd = NewMemoryFd(bytes);
  if (fd < 0) return kOutOfMemory;
  *made = NewPhysical(fd, bytes, static_cast<int>(current_device), properties->handle_types);
  return kOk;
}

int cuMemRelease(Allocation allocation) {
  ENTER_WITH_CONTEXT();
  auto found = state().physical.find(allocation);
  if (found == state().physical.end() || found->second.handles == 0) {
    return Complain(__func__, "no such allocation", 1);
  }
  --found->second.handles;
  DropUnused(found);
  return kOk;
}

int cuMemRetainAllocationHandle(Allocation* made, void* address) {
  ENTER_WITH_CONTEXT();
  Memory* memory = FindMemory(reinterpret_cast<uint64_t>(address), 1);
  if (memory == nullptr || memory->allocation == 0) return kInvalidValue;
  *made = memory->allocation;
  ++state().physical[*made].handles;
  return kOk;
}

int cuMemGetAllocationPropertiesFromHandle(AllocationProperties* properties,
                                           Allocation allocation) {
  ENTER_WITH_CONTEXT();
  auto found = state().physical.find(allocation);
  if (found == state().physical.end()) return Complain(__func__, "no such allocation", 1);
  *properties = AllocationProperties{};
  properties->type = 1;
  properties->handle_types = found->second.handle_types;
  properties->location = {1, found->second.device};
  return kOk;
}

int cuMemMap(Address address, size_t bytes, size_t offset, Allocation allocation,
             unsigned long long flags) {
  ENTER_WITH_CONTEXT();
  uint64_t begin = 0;
  Range* range = FindRange(address, bytes, &begin);
  auto physical = state().physical.find(allocation);
  if (range == nullptr || physical == state().physical.end() || offset != 0 || flags != 0 ||
      bytes == 0 || bytes % kGranularity != 0 || (address - begin) % kGranularity != 0) {
    return Complain(__func__, "arguments", kInvalidValue);
  }
  if (bytes > physical->second.bytes) return kInvalidValue;  // As a peer may have told us.
  auto next = state().memory.lower_bound(address);
  if (FindMemory(address, 1) != nullptr ||
      (next != state().memory.end() && next->first < address + bytes)) {
    return Complain(__func__, "something is mapped there", kInvalidValue);
  }
  Memory made;
  made.address = address;
  made.bytes = bytes;
  made.backing = range->backing + (address - begin);
  made.fd = dup(physical->second.fd);
  if (mmap(made.backing, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, made.fd, 0) ==
      MAP_FAILED) {
    return kOutOfMemory;
  }
  made.device = physical->second.device;
  made.id = state().next_id++;
  made.legacy = false;
  made.accessible = false;
  made.allocation = allocation;
  ++physical->second.mappings;
  state().memory[address] = made;
  return kOk;
}

int cuMemUnmap(Address address, size_t bytes) {
  ENTER_WITH_CONTEXT();
  auto found = state().memory.find(address);
  if (found == state().memory.end() || found->second.allocation == 0 ||
      found->second.bytes != bytes) {
    return Complain(__func__, "not mapped", kInvalidValue);
  }
  mmap(found->second.backing, bytes, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  close(found->second.fd);
  auto physical = state().physical.find(found->second.allocation);
  --physical->second.mappings;
  DropUnused(physical);
  state().memory.erase(found);
  return kOk;
}

int cuMemSetAccess(Address address, size_t bytes, const AccessDescription* access, size_t count) {
  ENTER_WITH_CONTEXT();
  if (count != 1 || access->location.type != 1 || access->location.id != current_device ||
      access->flags != 3) {
    return Complain(__func__, "arguments", kInvalidValue);
  }
  if (!ForChunks(address, bytes, [](Memory* chunk) { chunk->accessible = true; })) {
    return Complain(__func__, "not mapped", kInvalidValue);
  }
  return kOk;
}

int cuMemExportToShareableHandle(void* handle, Allocation allocation, int type,
                                 unsigned long long flags) {
  ENTER_WITH_CONTEXT();
  auto found = state().physical.find(allocation);
  if (found == state().physical.end() || (type != 1 && type != 8) || flags != 0) {
    return Complain(__func__, "arguments", kInvalidValue);
  }
  if ((found->second.handle_types & type) == 0) return kInvalidValue;
  if (type == 8) {
    memset(handle, 0, 64);
    snprintf(static_cast<char*>(handle), 64, "/proc/%d/fd/%d", getpid(), found->second.fd);
    return kOk;
  }
  const int fd = dup(found->second.fd);
  if (fd < 0) return kOutOfMemory;
  memcpy(handle, &fd, sizeof(fd));
  return kOk;
}

int cuMemImportFromShareableHandle(Allocation* made, void* handle, int type) {
  ENTER_WITH_CONTEXT();
  if (type != 1 && type != 8) return Complain(__func__, "type", kInvalidValue);
  const int fd = type == 8 ? open(static_cast<const char*>(handle), O_RDWR | O_CLOEXEC)
                           : dup(static_cast<int>(reinterpret_cast<intptr_t>(handle)));
  // What a peer sends may be anything: no complaint.
  const off_t bytes = fd >= 0 ? lseek(fd, 0, SEEK_END) : -1;
  if (bytes <= 0 || static_cast<uint64_t>(bytes) % kGranularity != 0) {
    if (fd >= 0) close(fd);
    return kInvalidValue;
  }
  *made = NewPhysical(fd, static_cast<uint64_t>(bytes), static_cast<int>(current_device), type);
  return kOk;
}

int cuMemGetHandleForAddressRange(void* handle, Address address, size_t bytes, int type,
                                  unsigned long long flags) {
  ENTER_WITH_CONTEXT();
  Memory* memory = FindMemory(address, 1);
  if (memory == nullptr || address % kPage != 0 || bytes % kPage != 0 || type != 1 || flags != 0) {
    return Complain(__func__, "arguments", kInvalidValue);
  }
  // A descriptor of its own, whose position says where the range begins.
  const int fd = open(("/proc/self/fd/" + std::to_string(memory->fd)).c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0 || lseek(fd, static_cast<off_t>(address - memory->address), SEEK_SET) < 0) {
    return Complain(__func__, "no descriptor", kInvalidValue);
  }
  memcpy(handle, &fd, sizeof(fd));
  return kOk;
}

int cuIpcGetMemHandle(IpcHandle* handle, Address address) {
  ENTER_WITH_CONTEXT();
  Memory* memory = FindMemory(address, 1);
  if (memory == nullptr) return Complain(__func__, "not device memory", kInvalidValue);
  if (!memory->legacy) return kInvalidValue;
  memset(handle, 0, sizeof(*handle));
  snprintf(reinterpret_cast<char*>(handle->bytes), sizeof(handle->bytes), "%d %d %llu %d", getpid(),
           memory->fd, static_cast<unsigned long long>(memory->bytes), memory->device);
  return kOk;
}

int cuIpcOpenMemHandle_v2(Address* address, IpcHandle handle, unsigned flags) {
  ENTER_WITH_CONTEXT();
  if (flags != 1) return Complain(__func__, "flags", kInvalidValue);
  int pid = 0;
  int fd = 0;
  unsigned long long bytes = 0;
  int device = 0;
  const char* text = reinterpret_cast<const char*>(handle.bytes);
  if (sscanf(text, "%d %d %llu %d", &pid, &fd, &bytes, &device) != 4) {
    return kInvalidHandle;  // A peer's fault, not ours.
  }
  if (pid == getpid()) return kInvalidContext;  // As the real one has it.
  if (device != current_device && !HavePeers()) return kPeerAccessUnsupported;
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
  const int opened = open(path, O_RDWR | O_CLOEXEC);
  const uint64_t whole = (bytes + kPage - 1) / kPage * kPage;
  Memory made;
  if (opened < 0 || !MapMemory(opened, whole, &made)) return 205;
  made.imported = true;
  *address = made.address;
  state().memory[made.address] = made;
  return kOk;
}

int cuIpcCloseMemHandle(Address address) {
  ENTER_WITH_CONTEXT();
  auto found = state().memory.find(address);
  if (found == state().memory.end() || !found->second.imported) {
    return Complain(__func__, "not opened", kInvalidValue);
  }
  munmap(found->second.backing, found->second.bytes);
  close(found->second.fd);
  state().memory.erase(found);
  return kOk;
}

int cuStreamCreate(tryst::cuda::Stream* stream, unsigned flags) {
  ENTER_WITH_CONTEXT();
  if (flags > 1) return kInvalidValue;
  auto* made = new FakeStream();
  made->device = static_cast<int>(current_device);
  state().streams.insert(made);
  *stream = reinterpret_cast<tryst::cuda::Stream>(made);
  return kOk;
}

int cuStreamDestroy_v2(tryst::cuda::Stream handle) {
  ENTER_WITH_CONTEXT();
  FakeStream* stream = StreamOf(__func__, handle);
  if (stream == nullptr) return kInvalidHandle;
  while (!stream->works.empty()) Advance(1 << 20);
  state().streams.erase(stream);
  delete stream;
  return kOk;
}

int cuStreamSynchronize(tryst::cuda::Stream handle) {
  ENTER_WITH_CONTEXT();
  FakeStream* stream = StreamOf(__func__, handle);
  if (stream == nullptr) return kInvalidHandle;
  ++state().blocking;
  while (!stream->works.empty() && !state().held) Advance(1 << 20);
  return kOk;
}

int cuStreamWaitEvent(tryst::cuda::Stream stream_handle, tryst::cuda::Event event_handle,
                      unsigned flags) {
  ENTER_WITH_CONTEXT();
  FakeStream* stream = StreamOf(__func__, stream_handle);
  FakeEvent* event = EventOf(__func__, event_handle);
  if (stream == nullptr || event == nullptr || flags != 0) return kInvalidHandle;
  stream->works.push_back({nullptr, event, event->recorded});
  return kOk;
}

int cuStreamQuery(tryst::cuda::Stream handle) {
  ENTER_WITH_CONTEXT();
  FakeStream* stream = StreamOf(__func__, handle);
  if (stream == nullptr) return kInvalidHandle;
  const bool empty = stream->works.empty();
  Advance(1);
  return empty ? kOk : kNotReady;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  ENTER();
  thread_local int current = 0;  // Global.
  if (mode == nullptr || *mode < 0 || *mode > 2) return Complain(__func__, "mode", kInvalidValue);
  std::swap(current, *mode);
  return kOk;
}

int cuStreamIsCapturing(tryst::cuda::Stream handle, int* status) {
  ENTER_WITH_CONTEXT();
  if (StreamOf(__func__, handle) == nullptr || status == nullptr) return kInvalidHandle;
  *status = state().captures ? 1 : 0;
  return kOk;
}

int cuEventCreate(tryst::cuda::Event* event, unsigned flags) {
  ENTER_WITH_CONTEXT();
  if (flags != 2) return Complain(__func__, "events are not for timing", kInvalidValue);
  auto* made = new FakeEvent();
  state().events.insert(made);
  *event = reinterpret_cast<tryst::cuda::Event>(made);
  return kOk;
}

int cuEventDestroy_v2(tryst::cuda::Event handle) {
  ENTER_WITH_CONTEXT();
  FakeEvent* event = EventOf(__func__, handle);
  if (event == nullptr) return kInvalidHandle;
  // What stands in a stream still refers to it.
  if (event->recorded != event->reached) Advance(1 << 20);
  state().events.erase(event);
  bool awaited = false;
  for (const FakeStream* stream : state().streams) {
    for (const Work& work : stream->works) awaited |= work.waits_for == event;
  }
  if (event->recorded == event->reached && !awaited) {
    delete event;
  } else {
    state().outlived.push_back(event);
  }
  return kOk;
}

int cuEventRecord(tryst::cuda::Event event_handle, tryst::cuda::Stream stream_handle) {
  ENTER_WITH_CONTEXT();
  FakeStream* stream = StreamOf(__func__, stream_handle);
  FakeEvent* event = EventOf(__func__, event_handle);
  if (stream == nullptr || event == nullptr) return kInvalidHandle;
  const uint64_t mark = ++event->recorded;
  stream->works.push_back(
      {[event, mark] { event->reached = std::max(event->reached, mark); }, nullptr, 0});
  return kOk;
}

int cuEventQuery(tryst::cuda::Event handle) {
  ENTER_WITH_CONTEXT();
  FakeEvent* event = EventOf(__func__, handle);
  if (event == nullptr) return kInvalidHandle;
  const bool there = event->reached >= event->recorded;
  Advance(1);
  return there ? kOk : kNotReady;
}

int cuLaunchHostFunc(tryst::cuda::Stream handle, HostFunction function, void* argument) {
  ENTER_WITH_CONTEXT();
  FakeStream* stream = StreamOf(__func__, handle);
  if (stream == nullptr || function == nullptr) return kInvalidHandle;
  stream->works.push_back({[function, argument] { function(argument); }, nullptr, 0});
  Advance(1 << 20);  // Who asks for a wake-up does not look any more.
  return kOk;
}

int cuMemcpyAsync(Address to, Address from, size_t bytes, tryst::cuda::Stream handle) {
  ENTER_WITH_CONTEXT();
  FakeStream* stream = StreamOf(__func__, handle);
  if (stream == nullptr) return kInvalidHandle;
  if (bytes == 0) return Complain(__func__, "no bytes", kInvalidValue);
  if (Reach(to, bytes) == nullptr || Reach(from, bytes) == nullptr) {
    return Complain(__func__, "not device and not pinned memory", kInvalidValue);
  }
  stream->works.push_back({[to, from, bytes] {
                             char* into = Reach(to, bytes);
                             const char* out_of = Reach(from, bytes);
                             if (into == nullptr || out_of == nullptr) {
                               Complain("cuMemcpyAsync", "memory was freed before the copy", 0);
                               return;
                             }
                             memmove(into, out_of, bytes);
                           },
                           nullptr, 0});
  return kOk;
}

int cuMemsetD8Async(Address to, unsigned char value, size_t bytes, tryst::cuda::Stream handle) {
  ENTER_WITH_CONTEXT();
  FakeStream* stream = StreamOf(__func__, handle);
  if (stream == nullptr || Reach(to, bytes) == nullptr) return kInvalidValue;
  stream->works.push_back({[to, value, bytes] {
                             if (char* at = Reach(to, bytes)) memset(at, value, bytes);
                           },
                           nullptr, 0});
  return kOk;
}

int cuModuleLoadData(tryst::cuda::Module* module, const void* image) {
  ENTER_WITH_CONTEXT();
  if (strstr(static_cast<const char*>(image), ".entry tryst_gather(") == nullptr) {
    return Complain(__func__, "not our PTX", kInvalidValue);
  }
  *module = reinterpret_cast<tryst::cuda::Module>(intptr_t{0x77});
  return kOk;
}

int cuModuleUnload(tryst::cuda::Module module) {
  ENTER_WITH_CONTEXT();
  return reinterpret_cast<intptr_t>(module) == 0x77 ? kOk : kInvalidHandle;
}

int cuModuleGetFunction(tryst::cuda::Function* function, tryst::cuda::Module module,
                        const char* name) {
  ENTER_WITH_CONTEXT();
  static const std::map<std::string, intptr_t> kFunctions = {{"tryst_gather", kGatherFunction},
                                                             {"tryst_copy", kCopyFunction},
                                                             {"tryst_standby", kStandbyFunction},
                                                             {"tryst_strided", kStridedFunction}};
  auto found = kFunctions.find(name);
  if (reinterpret_cast<intptr_t>(module) != 0x77 || found == kFunctions.end()) {
    return Complain(__func__, "no such function", 500);
  }
  *function = reinterpret_cast<tryst::cuda::Function>(found->second);
  return kOk;
}

int cuLaunchKernel(tryst::cuda::Function function, unsigned grid_x, unsigned grid_y,
                   unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                   unsigned shared_bytes, tryst::cuda::Stream handle, void** parameters,
                   void** extra) {
  ENTER_WITH_CONTEXT();
  FakeStream* stream = StreamOf(__func__, handle);
  const intptr_t which = reinterpret_cast<intptr_t>(function);
  const intptr_t device = current_device;
  if (stream == nullptr || which < kGatherFunction || which > kStridedFunction) {
    return kInvalidHandle;
  }
  if (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_x == 0 || block_x > 1024 || block_y != 1 ||
      block_z != 1 || shared_bytes != 0 || extra != nullptr) {
    return Complain(__func__, "arguments", kInvalidValue);
  }
  if (which == kCopyFunction) {
    tryst::GatherPiece piece{};
    Address flag = 0;
    unsigned long long value = 0;
    memcpy(&piece, parameters[0], sizeof(piece));
    memcpy(&flag, parameters[1], sizeof(flag));
    memcpy(&value, parameters[2], sizeof(value));
    if (grid_x != 1) return Complain(__func__, "tryst_copy is one block", kInvalidValue);
    stream->works.push_back(
        {[device, piece, flag, value] { RunCopy(device, piece, flag, value); }, nullptr, 0});
    return kOk;
  }
  if (which == kStandbyFunction) {
    FakeStandby standby;
    standby.device = device;
    standby.stream = stream;
    memcpy(&standby.words, parameters[0], sizeof(standby.words));
    memcpy(&standby.blocks, parameters[1], sizeof(standby.blocks));
    memcpy(&standby.next, parameters[2], sizeof(standby.next));
    memcpy(&standby.launch, parameters[3], sizeof(standby.launch));
    if (grid_x > 16 || block_x < 32) return Complain(__func__, "tryst_standby", kInvalidValue);
    stream->works.push_back({[standby] { RunStandby(standby); }, nullptr, 0});
    return kOk;
  }
  if (which == kStridedFunction) {
    tryst::StridedRuns runs{};
    memcpy(&runs, parameters[0], sizeof(runs));
    stream->works.push_back(
        {[device, runs, grid_x, block_x] { RunStrided(device, runs, grid_x, block_x); }, nullptr,
         0});
    return kOk;
  }
  Address table = 0;
  unsigned count = 0;
  memcpy(&table, parameters[0], sizeof(table));
  memcpy(&count, parameters[1], sizeof(count));
  stream->works.push_back(
      {[device, table, count] { RunGather(device, table, count); }, nullptr, 0});
  return kOk;
}

}  // extern "C"

namespace {

constexpr tryst::FakeCudaControl kControl = {
    [](const char* name, int result, int times, int after) {
      tryst::MutexLock lock(&state().mu);
      state().failures[name] = {result, times, after};
    },
    [] {
      tryst::MutexLock lock(&state().mu);
      return state().complaints.c_str();
    },
    [] {
      tryst::MutexLock lock(&state().mu);
      return state().blocking;
    },
    [](const char* name) {
      tryst::MutexLock lock(&state().mu);
      return state().calls[name];
    },
    [](bool on) {
      tryst::MutexLock lock(&state().mu);
      state().held = on;
    },
    [](uint64_t address, void* into, uint64_t bytes) {
      tryst::MutexLock lock(&state().mu);
      if (char* at = Reach(address, bytes)) memcpy(into, at, bytes);
    },
    [](uint64_t address, const void* from, uint64_t bytes) {
      tryst::MutexLock lock(&state().mu);
      if (char* at = Reach(address, bytes)) memcpy(at, from, bytes);
    },
    [] {
      tryst::MutexLock lock(&state().mu);
      uint64_t bytes = 0;
      for (const auto& [address, memory] : state().memory) bytes += memory.bytes;
      for (const auto& [handle, physical] : state().physical) bytes += physical.bytes;
      return bytes;
    },
    [](int which, int value) {
      tryst::MutexLock lock(&state().mu);
      state().attributes[which] = value;
    },
    [](bool on) {
      tryst::MutexLock lock(&state().mu);
      state().captures = on;
    },
};

}  // namespace

extern "C" const tryst::FakeCudaControl fake_cuda_control = kControl;
