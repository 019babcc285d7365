#include "channel/device/proved_ways.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/log.h"

namespace tryst {
namespace {

std::string ProcessName(const DeviceManifest& manifest) {
  return absl::StrCat(absl::Hex(manifest.process, absl::kZeroPad16),
                      absl::Hex(manifest.host, absl::kZeroPad16));
}

}  // namespace

DeviceWay* ProvedWays::Find(const DeviceManifest& manifest, const DeviceEngine& engine,
                            bool direct) {
  const auto id = std::make_tuple(manifest.process, manifest.host, engine.gpu()->ordinal(), direct);
  if (ways_.size() >= kMost && ways_.count(id) == 0 && !ForgetOldest()) return &one_too_many_;
  DeviceWay* way = &ways_[id];
  way->direct = direct;
  way->used = ++finds_;
  if (way->exporter.empty()) way->exporter = ProcessName(manifest);
  return way;
}

bool ProvedWays::ForgetOldest() {
  auto oldest = ways_.end();
  for (auto at = ways_.begin(); at != ways_.end(); ++at) {
    if (at->second.proofs > 0) continue;
    if (oldest == ways_.end() || at->second.used < oldest->second.used) oldest = at;
  }
  if (oldest == ways_.end()) return false;
  ways_.erase(oldest);
  return true;
}

DeviceWay::State ProvedWays::StateOf(DeviceWay* way, int64_t step, const TensorKey& key,
                                     DeviceEngine* engine) {
  if (way == &one_too_many_) return DeviceWay::State::kRefused;
  way->worker = std::string(key.src().worker);
  if (way->may_pass && way->state == DeviceWay::State::kRefused &&
      poller_->now_ns() - way->refused_at_ns > again_ms_ * 1'000'000) {
    way->state = DeviceWay::State::kUnknown;
  }
  if (way->state != DeviceWay::State::kUnknown) return way->state;
  ++way->proofs;  // It may end inside of the call.
  Probe(way, step, key, engine);
  --way->proofs;
  return way->state;
}

void ProvedWays::Probe(DeviceWay* way, int64_t step, const TensorKey& key, DeviceEngine* engine) {
  way->state = DeviceWay::State::kProbing;
  ++way->proofs;
  aside_(step, TransferKey(key, 0, "probe"), Tensor(),
         [this, way, step, key, engine](absl::Status status, const Tensor& answer) {
           if (!way->direct) return OnProbe(way, engine, std::move(status), answer);
           if (!status.ok()) return End(way, status);
           auto manifest = DecodeManifest(answer);
           if (!manifest.ok()) return End(way, manifest.status());
           ProbeDirect(way, step, key, engine, *manifest);
         });
}

void ProvedWays::OnProbe(DeviceWay* way, DeviceEngine* engine, absl::Status status,
                         const Tensor& answer) {
  if (!status.ok()) {
    // Its step was aborted, its link broke, it came too late: that says nothing of the way.
    return End(way, status, /*may_pass=*/!absl::IsUnimplemented(status));
  }
  auto manifest = DecodeManifest(answer);
  if (!manifest.ok()) return End(way, manifest.status());
  if (!manifest->has_ipc || manifest->bytes > engine->slot_bytes()) {
    return End(way, absl::DataLossError("the producer broke the protocol: it offered no memory to "
                                        "test whether this worker can read it in place"));
  }
  auto mapping = engine->mappings()->Open(ProcessName(*manifest), manifest->reference);
  if (!mapping.ok()) return End(way, mapping.status());
  const cuda::Address from = (*mapping)->base() + manifest->reference.offset;
  Compare(way, engine, reinterpret_cast<const void*>(from), manifest->bytes, manifest->digest,
          [engine, mapping = *mapping] { engine->mappings()->Close(mapping); });
}

// Proves that both NICs and the channel between them bring the producer's memory into ours.
void ProvedWays::ProbeDirect(DeviceWay* way, int64_t step, const TensorKey& key,
                             DeviceEngine* engine, const DeviceManifest& manifest) {
  if (!manifest.on_device || manifest.bytes > engine->slot_bytes()) {
    return End(way,
               absl::UnimplementedError("the producer offers no GPU memory to test the NICs with"));
  }
  auto into = engine->Allocate(DType::kUint8, manifest.shape, nullptr);
  if (!into.ok()) return End(way, into.status());
  ++copies_;
  // A NIC waits for no stream, so the earlier user of the block must have ended.
  engine->copier()->WhenThere(LastUse(*into), [this, way, step, key, engine, manifest,
                                               into = *into](absl::Status there) {
    --copies_;
    if (!there.ok()) return End(way, there);
    aside_(step, TransferKey(key, 0, "direct"), into,
           [this, way, engine, manifest, into](absl::Status status, const Tensor& landed) {
             if (status.ok() && !landed.SharesBytesWith(into)) {
               status =
                   absl::UnimplementedError("the test tensor did not arrive in the GPU's memory");
             }
             if (!status.ok()) return End(way, status);
             Compare(way, engine, into.data(), manifest.bytes, manifest.digest, [into] {});
           });
  });
}

void ProvedWays::Compare(DeviceWay* way, DeviceEngine* engine, const void* from, uint64_t bytes,
                         uint32_t digest, absl::AnyInvocable<void() &&> after) {
  ++copies_;
  engine->WhenFetchSlot([this, way, engine, from, bytes, digest,
                         after = std::move(after)](StorageRef slot) mutable {
    void* const into = slot->data();
    engine->Copy(
        Copier::Direction::kToHost, into, from, bytes, nullptr, nullptr,
        [this, way, bytes, digest, slot, after = std::move(after)](absl::Status copied) mutable {
          --copies_;
          std::move(after)();
          if (copied.ok() && Crc32c(0, slot->data(), bytes) != digest) {
            copied = absl::DataLossError("a test of reading its GPU memory got wrong bytes");
          }
          End(way, std::move(copied));
        });
  });
}

void ProvedWays::End(DeviceWay* way, absl::Status status, bool may_pass) {
  way->state = status.ok() ? DeviceWay::State::kProved : DeviceWay::State::kRefused;
  way->why = status.ok() ? "a test read the right bytes" : std::string(status.message());
  way->refused_at_ns = poller_->now_ns();
  way->may_pass = way->direct || may_pass || absl::IsResourceExhausted(status);
  TRYST_LOG(Info) << "GPU tensors of " << way->worker << " are "
                  << (status.ok()   ? "read in place"
                      : way->direct ? "not written by NICs into GPU memory"
                                    : "not read in place")
                  << (status.ok() && way->direct ? " by NICs: " : ": ") << way->why;
  // A fetch that ends may remove others from the list.
  std::reverse(way->waiting.begin(), way->waiting.end());
  while (!way->waiting.empty()) way->waiting.back()->OnProof();
  --way->proofs;
}

std::string ProvedWays::Explain() const {
  std::string out;
  for (const auto& [id, way] : ways_) {
    absl::StrAppend(&out, "GPU tensors of ", way.worker, " (process ", way.exporter.substr(0, 8),
                    "): ");
    switch (way.state) {
      case DeviceWay::State::kUnknown:
      case DeviceWay::State::kProbing:
        absl::StrAppend(&out, "the way is being proved\n");
        break;
      case DeviceWay::State::kProved:
        absl::StrAppend(&out, way.direct ? "rdma + GPUDirect, " : "cuda_ipc, ", way.why, "\n");
        break;
      case DeviceWay::State::kRefused:
        absl::StrAppend(&out, "not by ", way.direct ? "rdma + GPUDirect: " : "cuda_ipc: ", way.why,
                        "\n");
        break;
    }
  }
  return out;
}

}  // namespace tryst
