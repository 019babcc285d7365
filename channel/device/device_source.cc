#include "channel/device/device_source.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "channel/device/chunk_mail.h"

namespace tryst {
namespace {

constexpr char kStopping[] = "the producer is stopping";

constexpr uint64_t kProbeBytes = 4096;
constexpr int64_t kLeaseTickNs = 1'000'000'000;

Tensor BytesOf(StorageRef storage, uint64_t offset, uint64_t bytes) {
  auto tensor =
      Tensor::FromStorage(std::move(storage), offset, DType::kUint8, {static_cast<int64_t>(bytes)});
  TRYST_CHECK(tensor.ok()) << tensor.status();
  return *std::move(tensor);
}

absl::StatusOr<Tensor> ManifestTensor(const DeviceManifest& manifest, uint64_t more) {
  auto tensor =
      Tensor::Allocate(DType::kUint8, {static_cast<int64_t>(DeviceManifest::kBytes + more)});
  if (tensor.ok()) EncodeManifest(manifest, static_cast<uint8_t*>(tensor->mutable_data()));
  return tensor;
}

}  // namespace

DeviceSource::DeviceSource(Poller* poller, TensorSource* source, std::vector<DeviceEngine*> engines,
                           DeviceSourceOptions options)
    : poller_(poller),
      on_host_(source),
      engines_(std::move(engines)),
      source_(engines_.empty() ? &on_host_ : source),
      options_(options),
      random_(options.seed),
      lease_timer_(this) {
  for (const DeviceEngine* engine : engines_) {
    TRYST_CHECK(options_.chunk_bytes <= engine->slot_bytes());
    TRYST_CHECK(options_.inside_bytes + DeviceManifest::kBytes <= engine->slot_bytes());
  }
}

DeviceSource::~DeviceSource() { TRYST_CHECK(closed_ || transfers_.empty()); }

size_t DeviceSource::EndLending() {
  lends_ = false;
  return static_cast<size_t>(std::count_if(transfers_.begin(), transfers_.end(),
                                           [](const auto& one) { return one.second.in_reach; }));
}

void DeviceSource::Close() {
  lends_ = false;
  closed_ = true;
  transfers_.clear();
  probes_.clear();
  poller_->CancelTimer(&lease_timer_);
}

void DeviceSource::End(DoneFn done, absl::StatusOr<Tensor> tensor, uint64_t turn) {
  Received received{tensor.status()};
  if (tensor.ok()) received.tensor = *std::move(tensor);
  received.turn = turn;
  std::move(done)(std::move(received));
}

// Answers with a dead tensor, which has no bytes.
void DeviceSource::EndEmpty(DoneFn done) { std::move(done)({absl::OkStatus(), Tensor(), true}); }

void DeviceSource::Take(int64_t step_id, const TensorKey& key, const RecvArgs& args, DoneFn done) {
  const DeviceAsk ask = key.empty() ? DeviceAsk() : ParseDeviceAsk(key);
  if (ask.kind == DeviceAsk::Kind::kNone) return on_host_.Take(step_id, key, args, std::move(done));
  TakeForAsker(step_id, key, ask, args, std::move(done));
}

bool DeviceSource::MayTake(const TensorKey& key) const {
  return !key.empty() && ParseDeviceAsk(key).kind == DeviceAsk::Kind::kNone &&
         on_host_.MayTake(key);
}

// On the poller's thread, behind give-backs: a manifest could otherwise take a tensor that was sent
// later.
void DeviceSource::TakeForAsker(int64_t step_id, const TensorKey& key, const DeviceAsk& ask,
                                const RecvArgs& args, DoneFn done) {
  if (poller_->OnThread()) return AnswerAsker(step_id, key, ask, args, std::move(done));
  poller_->PostFn([this, step_id, key, ask, args, done = std::move(done)]() mutable {
    AnswerAsker(step_id, key, ask, args, std::move(done));
  });
}

void DeviceSource::AnswerAsker(int64_t step_id, const TensorKey& key, const DeviceAsk& ask,
                               const RecvArgs& args, DoneFn done) {
  switch (ask.kind) {
    case DeviceAsk::Kind::kManifest:
      return TakeForManifest(step_id, key, ask, args, std::move(done));
    case DeviceAsk::Kind::kChunk:
      return AnswerChunk(key, ask.transfer, ask.chunk, std::move(done));
    case DeviceAsk::Kind::kDone:
      if (Find(key, ask.transfer) != nullptr) transfers_.erase(ask.transfer);
      return EndEmpty(std::move(done));
    case DeviceAsk::Kind::kBack:
      if (Find(key, ask.transfer) != nullptr) GiveBackTransfer(ask.transfer);
      return EndEmpty(std::move(done));
    case DeviceAsk::Kind::kAlive:
      if (Find(key, ask.transfer) != nullptr) return EndEmpty(std::move(done));
      return End(std::move(done),
                 absl::AbortedError("the producer no longer keeps the tensor, because the consumer "
                                    "did not take it in time: ask again"));
    case DeviceAsk::Kind::kChunks:
      return AnswerChunks(key, ask.transfer, ask.chunk, std::string(ask.mailbox),
                          std::string(ask.token), std::move(done));
    case DeviceAsk::Kind::kWhole:
      return AnswerWhole(key, ask.transfer, std::move(done));
    case DeviceAsk::Kind::kProbe:
      return AnswerProbe(/*direct=*/false, std::move(done));
    case DeviceAsk::Kind::kDirect:
      return AnswerProbe(/*direct=*/true, std::move(done));
    case DeviceAsk::Kind::kWrong:
    case DeviceAsk::Kind::kNone:
      return End(std::move(done),
                 absl::InvalidArgumentError(absl::StrCat(
                     "the consumer's request for a GPU's tensor is malformed: ", key.text())));
  }
}

void DeviceSource::GiveBack(int64_t step_id, const TensorKey& key, Received taken) {
  const DeviceAsk ask = ParseDeviceAsk(key);
  if (ask.kind == DeviceAsk::Kind::kNone) return on_host_.GiveBack(step_id, key, std::move(taken));
  auto plain = PlainKey(key, ask);
  if (ask.kind != DeviceAsk::Kind::kManifest || !plain.ok()) return;
  if (taken.is_dead || taken.tensor.dtype() == DType::kString) {
    return source_->GiveBack(step_id, *plain, std::move(taken));
  }
  OnPoller([this, step_id, plain = *plain, taken = std::move(taken)]() mutable {
    GiveBackManifest(step_id, plain, std::move(taken));
  });
}

// A manifest is given back as the tensor that it describes.
void DeviceSource::GiveBackManifest(int64_t step_id, const TensorKey& plain, Received taken) {
  auto manifest = DecodeManifest(taken.tensor);
  TRYST_CHECK(manifest.ok()) << manifest.status();
  if (!manifest->inside) return GiveBackTransfer(manifest->transfer);
  // A copy, because the tensor may wait long in the table, and its staging slot must not.
  Tensor inside = *Tensor::Allocate(manifest->dtype, manifest->shape);
  if (manifest->bytes > 0) {
    memcpy(inside.mutable_data(), taken.tensor.data_as<char>() + DeviceManifest::kBytes,
           manifest->bytes);
  }
  taken.tensor = std::move(inside);
  source_->GiveBack(step_id, plain, std::move(taken));
}

void DeviceSource::GiveBackTransfer(uint64_t id) {
  auto kept = transfers_.find(id);
  if (kept == transfers_.end()) return;  // Closed: the steps are over.
  Transfer transfer = std::move(kept->second);
  transfers_.erase(kept);
  source_->GiveBack(transfer.step_id, transfer.plain, std::move(transfer.taken));
}

void DeviceSource::TakeForManifest(int64_t step_id, const TensorKey& key, const DeviceAsk& ask,
                                   const RecvArgs& args, DoneFn done) {
  auto plain = PlainKey(key, ask);
  if (!plain.ok()) return End(std::move(done), plain.status());
  auto answer = std::make_shared<Answer>();
  answer->done = std::move(done);
  answer->consumer = std::string(key.dst().worker);
  answer->step_id = step_id;
  answer->plain = *plain;
  answer->ask = ask;
  answer->ask.edge = absl::string_view();  // The key's, which goes.
  source_->Take(step_id, *plain, args, [this, answer](Received&& taken) mutable {
    const Tensor& tensor = taken.tensor;
    if (!taken.status.ok() || taken.is_dead || tensor.dtype() == DType::kString) {
      return std::move(answer->done)(std::move(taken));
    }
    const DeviceAsk& wanted = answer->ask;
    absl::Status wrong;
    if (tensor.dtype() == DType::kPacked) {
      wrong = PackedOnDevice(answer->plain);
    } else if (wanted.has_shape &&
               (wanted.dtype != tensor.dtype() || wanted.shape != tensor.shape())) {
      wrong = absl::InvalidArgumentError(
          absl::StrCat("the receive's destination is ", DTypeName(wanted.dtype),
                       wanted.shape.ToString(), " and the tensor that was sent is ",
                       DTypeName(tensor.dtype()), tensor.shape().ToString()));
    }
    if (!wrong.ok()) {
      source_->GiveBack(answer->step_id, answer->plain, std::move(taken));
      return End(std::move(answer->done), wrong);
    }
    answer->taken = std::move(taken);
    OnPoller([this, answer = std::move(answer)]() mutable { AnswerManifest(std::move(answer)); });
  });
}

DeviceEngine* DeviceSource::EngineOf(const Tensor& tensor) const {
  const int32_t ordinal = tensor.space().device_ordinal;
  for (DeviceEngine* engine : engines_) {
    if (engine->gpu()->ordinal() == ordinal) return engine;
  }
  return nullptr;
}

// ---- What is this tensor? ----

void DeviceSource::AnswerManifest(std::shared_ptr<Answer> answer) {
  const Tensor& tensor = answer->taken.tensor;
  const bool on_host = tensor.space().host_readable();
  if (!lends_) return FailInside(answer, absl::UnavailableError(kStopping));
  if (!on_host && (EngineOf(tensor) == nullptr ||
                   dynamic_cast<GpuContext*>(answer->taken.send_context.get()) == nullptr)) {
    return FailInside(answer,
                      absl::FailedPreconditionError(absl::StrCat(
                          "the program sent a tensor of GPU ", tensor.space().device_ordinal,
                          " without a GpuContext, or the setting gpus does not name that GPU")));
  }
  DeviceManifest manifest;
  manifest.dtype = tensor.dtype();
  manifest.shape = tensor.shape();
  manifest.bytes = tensor.bytes();
  manifest.chunk_bytes = options_.chunk_bytes;
  if (!on_host && manifest.bytes > 0) {
    if (options_.offer_direct) FillOrigin(&manifest);
    if (AnswerIpc(answer, &manifest)) return;
  }
  if (manifest.bytes <= options_.inside_bytes) return AnswerInside(answer, manifest);
  ++counters_.transfers;
  manifest.transfer = Keep(*answer);
  EndKept(answer, manifest, absl::OkStatus());
}

// Tells of a tensor that is kept. If that cannot be, the tensor goes back: who fails takes none.
void DeviceSource::EndKept(const std::shared_ptr<Answer>& answer, DeviceManifest manifest,
                           absl::Status status) {
  if (manifest.in_reach()) ProveProcess(answer->plain, &manifest);
  absl::StatusOr<Tensor> told =
      status.ok() ? ManifestTensor(manifest, 0) : absl::StatusOr<Tensor>(std::move(status));
  if (!told.ok()) GiveBackTransfer(manifest.transfer);
  EndAnswer(answer.get(), std::move(told));
}

void DeviceSource::FailInside(const std::shared_ptr<Answer>& answer, const absl::Status& why) {
  source_->GiveBack(answer->step_id, answer->plain, std::move(answer->taken));
  End(std::move(answer->done), why);
}

void DeviceSource::AnswerInside(const std::shared_ptr<Answer>& answer, DeviceManifest manifest) {
  manifest.inside = true;
  ++counters_.inside;
  const Tensor& tensor = answer->taken.tensor;
  if (tensor.space().host_readable() || manifest.bytes == 0) {
    auto made = ManifestTensor(manifest, manifest.bytes);
    if (!made.ok()) return FailInside(answer, made.status());
    if (manifest.bytes > 0) {
      memcpy(static_cast<char*>(made->mutable_data()) + DeviceManifest::kBytes, tensor.data(),
             manifest.bytes);
    }
    return EndAnswer(answer.get(), std::move(made));
  }
  DeviceEngine* engine = EngineOf(tensor);
  engine->WhenServeSlot([this, engine, answer, manifest](StorageRef slot) {
    EncodeManifest(manifest, static_cast<uint8_t*>(slot->data()));
    counters_.bytes_staged += manifest.bytes;
    engine->Copy(
        Copier::Direction::kToHost, static_cast<char*>(slot->data()) + DeviceManifest::kBytes,
        answer->taken.tensor.data(), manifest.bytes,
        static_cast<GpuContext*>(answer->taken.send_context.get())->moment(), nullptr,
        [this, answer, slot, manifest](const absl::Status& status) {
          if (!status.ok()) return FailInside(answer, status);
          EndAnswer(answer.get(), BytesOf(slot, 0, DeviceManifest::kBytes + manifest.bytes));
        });
  });
}

void DeviceSource::FillOrigin(DeviceManifest* manifest) const {
  manifest->on_device = true;
  manifest->host = host_;
  manifest->process = process_;
}

void DeviceSource::FillIpc(DeviceEngine* engine, const Tensor& tensor,
                           const IpcReference& reference, DeviceManifest* manifest) const {
  FillOrigin(manifest);
  manifest->on_device = options_.offer_direct;
  manifest->has_ipc = reference.chunks == 0;
  manifest->has_chunks = reference.chunks > 0;
  manifest->address = AddressOf(tensor.data());
  manifest->ordinal = engine->gpu()->ordinal();
  manifest->uuid = engine->gpu()->device().uuid;
  manifest->reference = reference;
  manifest->forgotten = IpcExporter::forgotten();
}

// True: the consumer was told where to read the tensor itself.
bool DeviceSource::AnswerIpc(const std::shared_ptr<Answer>& answer, DeviceManifest* manifest) {
  if (!options_.offer_ipc || answer->ask.host == 0 || answer->ask.host != host_) return false;
  DeviceEngine* engine = EngineOf(answer->taken.tensor);
  auto reference = engine->exporter()->Export(AddressOf(answer->taken.tensor.data()),
                                              answer->taken.tensor.bytes());
  if (!reference.ok()) {
    if (counters_.not_shared++ == 0) {
      TRYST_LOG(Warning) << "a GPU's tensor is copied through host memory, because its own memory "
                            "cannot be shared with other processes (logged once): "
                         << reference.status().message();
    }
    not_shared_ = std::string(reference.status().message());
    return false;
  }
  ++counters_.ipc;
  FillIpc(engine, answer->taken.tensor, *reference, manifest);
  manifest->transfer = Keep(*answer);
  transfers_[manifest->transfer].in_reach = true;
  // The consumer is told once the bytes are there; its lease begins then.
  const GpuEvent* const moment =
      static_cast<GpuContext*>(answer->taken.send_context.get())->moment();
  if (moment == nullptr) {
    EndKept(answer, *manifest, absl::OkStatus());
    return true;
  }
  transfers_[manifest->transfer].expires_ns = std::numeric_limits<int64_t>::max();
  engine->copier()->WhenThere(moment, [this, answer, manifest = *manifest](absl::Status status) {
    auto kept = transfers_.find(manifest.transfer);
    if (kept != transfers_.end()) kept->second.expires_ns = LeaseEnd();
    EndKept(answer, manifest, std::move(status));
  });
  return true;
}

void DeviceSource::AnswerProbe(bool direct, DoneFn done) {
  if (engines_.empty() || closed_) {
    return End(std::move(done),
               absl::UnimplementedError("the producer uses no GPU: set gpus there"));
  }
  DeviceEngine* engine = engines_.front();
  Probe& probe = probes_[engine];
  if (!probe.tensor.valid()) {
    auto made = engine->Allocate(DType::kUint8, {kProbeBytes}, nullptr);
    if (!made.ok()) return End(std::move(done), made.status());
    probe.tensor = *std::move(made);
    probe.seed = random_();
  }
  DeviceManifest manifest;
  manifest.dtype = DType::kUint8;
  manifest.shape = {kProbeBytes};
  manifest.bytes = kProbeBytes;
  manifest.chunk_bytes = options_.chunk_bytes;
  FillOrigin(&manifest);
  auto reference = engine->exporter()->Export(AddressOf(probe.tensor.data()), kProbeBytes);
  if (reference.ok() && options_.offer_ipc) {
    FillIpc(engine, probe.tensor, *reference, &manifest);
  }
  if (probe.ready) return EndProbe(engine, direct, manifest, std::move(done));
  engine->WhenServeSlot([this, direct, engine, manifest, seed = probe.seed, tensor = probe.tensor,
                         done = std::move(done)](StorageRef slot) mutable {
    if (closed_) return End(std::move(done), absl::UnavailableError(kStopping));
    std::mt19937_64 bytes(seed);
    auto* words = static_cast<uint64_t*>(slot->data());
    for (uint64_t i = 0; i < kProbeBytes / 8; ++i) words[i] = bytes();
    const uint32_t digest = Crc32c(0, slot->data(), kProbeBytes);
    void* const to = tensor.mutable_data();
    engine->Copy(Copier::Direction::kToDevice, to, slot->data(), kProbeBytes, nullptr, nullptr,
                 [this, direct, engine, manifest, digest, slot, tensor = std::move(tensor),
                  done = std::move(done)](absl::Status status) mutable {
                   if (status.ok() && closed_) status = absl::UnavailableError(kStopping);
                   if (!status.ok()) return End(std::move(done), status);
                   probes_[engine].digest = digest;
                   probes_[engine].ready = true;
                   EndProbe(engine, direct, manifest, std::move(done));
                 });
  });
}

void DeviceSource::EndProbe(DeviceEngine* engine, bool direct, const DeviceManifest& manifest,
                            DoneFn done) {
  if (direct) return End(std::move(done), probes_[engine].tensor);
  DeviceManifest answer = manifest;
  answer.digest = probes_[engine].digest;
  End(std::move(done), ManifestTensor(answer, 0));
}

// ---- Transfers ----

uint64_t DeviceSource::Keep(const Answer& answer) {
  uint64_t id = 0;
  while (id == 0 || transfers_.count(id) != 0) id = random_();
  Transfer& transfer = transfers_[id];
  transfer.taken = answer.taken;
  transfer.consumer = answer.consumer;
  transfer.step_id = answer.step_id;
  transfer.plain = answer.plain;
  transfer.expires_ns = LeaseEnd();
  if (!lease_timer_.is_set()) poller_->SetTimer(&lease_timer_, poller_->now_ns() + kLeaseTickNs);
  return id;
}

DeviceSource::Transfer* DeviceSource::Find(const TensorKey& key, uint64_t id) {
  auto found = transfers_.find(id);
  if (found == transfers_.end() || found->second.consumer != key.dst().worker) return nullptr;
  found->second.expires_ns = LeaseEnd();
  return &found->second;
}

void DeviceSource::AnswerChunk(const TensorKey& key, uint64_t id, uint64_t chunk, DoneFn done) {
  Transfer* transfer = Find(key, id);
  if (transfer == nullptr) {
    return End(std::move(done),
               absl::AbortedError("the producer no longer keeps the tensor, because the consumer "
                                  "did not take it in time: ask again"));
  }
  const Tensor tensor = transfer->taken.tensor;
  const uint64_t at = chunk * options_.chunk_bytes;
  if (chunk > tensor.bytes() / options_.chunk_bytes || at >= tensor.bytes()) {
    return End(
        std::move(done),
        absl::OutOfRangeError(
            "the consumer broke the protocol: it asks for a piece beyond the end of the tensor"));
  }
  const uint64_t bytes = std::min(options_.chunk_bytes, tensor.bytes() - at);
  const std::shared_ptr<DeviceContext> context = transfer->taken.send_context;
  ++counters_.chunks;
  if (tensor.space().host_readable()) {
    return End(std::move(done), BytesOf(tensor.storage(), tensor.storage_offset() + at, bytes));
  }
  DeviceEngine* engine = EngineOf(tensor);
  engine->WhenServeSlot(
      [this, engine, tensor, context, at, bytes, done = std::move(done)](StorageRef slot) mutable {
        counters_.bytes_staged += bytes;
        void* const data = slot->data();
        engine->Copy(Copier::Direction::kToHost, data, static_cast<const char*>(tensor.data()) + at,
                     bytes, static_cast<GpuContext*>(context.get())->moment(), nullptr,
                     [tensor, context, bytes, slot = std::move(slot),
                      done = std::move(done)](absl::Status status) mutable {
                       if (!status.ok()) return End(std::move(done), status);
                       End(std::move(done), BytesOf(std::move(slot), 0, bytes));
                     });
      });
}

// Puts the chunks into the consumer's mailbox before the answer says so.
void DeviceSource::AnswerChunks(const TensorKey& key, uint64_t id, uint64_t first,
                                const std::string& mailbox, const std::string& token, DoneFn done) {
  Transfer* transfer = Find(key, id);
  if (transfer == nullptr) {
    return End(std::move(done),
               absl::AbortedError("the producer no longer keeps the tensor, because the consumer "
                                  "did not take it in time: ask again"));
  }
  const Tensor& tensor = transfer->taken.tensor;
  if (tensor.space().host_readable() || !options_.offer_ipc) {
    return End(std::move(done),
               absl::UnimplementedError("the producer does not let this tensor be read in place"));
  }
  ChunkExporter* const exporter = EngineOf(tensor)->exporter()->chunks();
  auto layout = exporter->Describe(AddressOf(tensor.data()), tensor.bytes());
  if (!layout.ok()) return End(std::move(done), layout.status());
  const std::vector<MemoryChunk>& chunks = (*layout)->chunks;
  if (first >= chunks.size()) {
    return End(std::move(done),
               absl::OutOfRangeError("the consumer broke the protocol: it asks for a piece beyond "
                                     "the end of the tensor's memory"));
  }
  cuda::Address at = (*layout)->base;
  for (uint64_t i = 0; i < first; ++i) at += chunks[i].bytes;
  std::vector<OfferedChunk> offered;
  for (uint64_t i = first; i < chunks.size() && offered.size() < kChunksPerMail; ++i) {
    auto handle = exporter->Export(at);
    if (!handle.ok()) return End(std::move(done), handle.status());
    offered.push_back({chunks[i], *std::move(handle)});
    at += chunks[i].bytes;
  }
  const absl::Status sent = SendChunks(mailbox, token, (*layout)->id, first, offered);
  if (!sent.ok()) return End(std::move(done), sent);
  counters_.handed_on += offered.size();
  EndEmpty(std::move(done));
}

std::string DeviceSource::Explain() const {
  if (counters_.not_shared == 0) return "";
  return absl::StrCat("device tensors of ours for this host: ", counters_.not_shared,
                      " are staged, the last: ", not_shared_, "\n");
}

// Answers with the tensor in place, for a channel whose NIC reads device memory; others refuse it.
void DeviceSource::AnswerWhole(const TensorKey& key, uint64_t id, DoneFn done) {
  Transfer* transfer = Find(key, id);
  if (transfer == nullptr) {
    return End(std::move(done),
               absl::AbortedError("the producer no longer keeps the tensor, because the consumer "
                                  "did not take it in time: ask again"));
  }
  const Tensor& tensor = transfer->taken.tensor;
  if (tensor.space().host_readable() || !options_.offer_direct) {
    return End(std::move(done),
               absl::UnimplementedError("the producer does not let this tensor be read in place"));
  }
  const Tensor bytes = BytesOf(tensor.storage(), tensor.storage_offset(), tensor.bytes());
  EngineOf(tensor)->copier()->WhenThere(
      static_cast<GpuContext*>(transfer->taken.send_context.get())->moment(),
      [bytes, context = transfer->taken.send_context,
       done = std::move(done)](absl::Status status) mutable {
        End(std::move(done),
            status.ok() ? absl::StatusOr<Tensor>(bytes) : absl::StatusOr<Tensor>(status));
      });
}

void DeviceSource::OnLeaseTimer() {
  for (auto it = transfers_.begin(); it != transfers_.end();) {
    if (it->second.expires_ns > poller_->now_ns()) {
      ++it;
      continue;
    }
    ++counters_.expired;
    TRYST_LOG(Warning) << it->second.consumer << " asked for a tensor of "
                       << it->second.taken.tensor.bytes()
                       << " bytes of this worker and did not take it within " << options_.lease_ms
                       << " ms: the tensor is dropped";
    it = transfers_.erase(it);
  }
  if (!transfers_.empty()) poller_->SetTimer(&lease_timer_, poller_->now_ns() + kLeaseTickNs);
}

}  // namespace tryst
