// Tryst as its users use it: a server in each process, Send, and RecvAsync into the caller's
// memory. soft, grpc, stream (of gRPC), shm-copy: the path; shm-ref: the producer's tensors lie in
// shared memory and are read where they are. -executor: callbacks run on the server's threads, not
// in place; -digests: soft, as between hosts, with a CRC-32C of each payload; -landing: into memory
// of the pool instead; -many: 64 keys in one RecvMany; -sleeping: nobody spins; -pollersN: the
// server has N of them; -helpers0: nobody helps its pollers; -c: by the C interface's tryst_recv,
// on a thread that waits.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/log.h"
#include "base/mutex.h"
#include "bench/peers/harness.h"
#include "server/c/handles.h"
#include "server/c/tryst_v1.h"
#include "server/data_plane/open_nics.h"
#include "server/members/membership.h"
#include "server/process/grpc_locks.h"
#include "server/server.h"
#include "server/server_parts.h"

namespace tryst {
namespace {

// "soft-pollers4" gives 4.
int NumberAfter(const std::string& variant, const char* word) {
  return atoi(variant.c_str() + variant.find(word) + strlen(word));
}

constexpr int kCopiesAhead = 512;  // For all tensors together, so that no request waits.

void Check(const absl::Status& status) {
  if (!status.ok()) Die("%s", status.ToString().c_str());
}

TensorKey MakeKey(const std::string& producer, uint64_t incarnation, const std::string& consumer,
                  int index) {
  return TensorKeyPrefix::Make(absl::StrCat(producer, "/device:CPU:0"), incarnation,
                               absl::StrCat(consumer, "/device:CPU:0"),
                               absl::StrCat("edge_", index, "_w/read"))
      ->At(0, 0);
}

// A tensor of the table. It is sent again whenever its last send has ended.
class Resent final : public Storage {
 public:
  Resent(const Held& held, const MemorySpace& space, std::function<void(Resent*)> again)
      : Storage(const_cast<char*>(held.data), held.bytes, space), again_(std::move(again)) {
    KeepNotes();  // The table keeps the memory.
  }
  Tensor Again() {
    return *Tensor::FromStorage(StorageRef::Own(this), 0, DType::kUint8,
                                TensorShape({static_cast<int64_t>(bytes())}));
  }
  int index = 0;

 private:
  void OnUnused() override {
    Reuse();
    again_(this);
  }
  const std::function<void(Resent*)> again_;
};

// Keeps `kCopiesAhead` sends of the table's tensors ahead of the requests.
class TrystProducer final : public ProducerEnd {
 public:
  TrystProducer(Server* server, const std::string& variant, const std::vector<size_t>& sizes)
      : server_(server),
        shared_(Has(variant, "shm-ref") ? server->allocator() : nullptr),
        table_(sizes, [this](size_t bytes) { return Allocate(bytes); }) {}
  Table& table() override { return table_; }
  std::string Address() override {
    return absl::StrCat(server_->worker(), " ", server_->incarnation(), " ", step(), " ",
                        server_->address());
  }
  void Poll(bool) override {}

  void SendTo(const std::string& consumer) {
    auto rendezvous = server_->steps()->StartStep(step());
    Check(rendezvous.status());
    rendezvous_ = *std::move(rendezvous);
    const int count = static_cast<int>(table_.tensors().size());
    for (int i = 0; i < count; ++i) {
      keys_.push_back(MakeKey(server_->worker(), server_->incarnation(), consumer, i));
    }
    for (int copy = 0; copy < std::max(2, kCopiesAhead / count); ++copy) {
      for (int i = 0; i < count; ++i) {
        const Held& held = table_.tensors()[i];
        auto* resent = new Resent(held, SpaceOf(held), [this](Resent* again) {
          table_.CountFound();
          Send(again);
        });
        resent->index = i;
        Send(resent);
      }
    }
  }

 private:
  // Numbers the producer ends of a process.
  int64_t step() const { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(this) >> 4); }
  void Send(Resent* resent) {
    // A send is refused only when the step has ended, at the end of the process.
    (void)rendezvous_->Send(keys_[resent->index], {}, resent->Again(), /*is_dead=*/false);
  }

  char* Allocate(size_t bytes) {
    if (shared_ == nullptr) return Table::AllocatePages(bytes);
    void* memory = shared_->AllocateRaw(bytes);
    if (memory == nullptr) Die("no %zu bytes of shared memory", bytes);
    memset(memory, 1, bytes);
    return static_cast<char*>(memory);
  }
  MemorySpace SpaceOf(const Held& held) const {
    return shared_ == nullptr ? MemorySpace() : shared_->SpaceOf(held.data);
  }

  Server* const server_;
  Allocator* const shared_;  // Null: tensors lie in ordinary memory.
  Table table_;
  const RecvArgs args_;
  std::shared_ptr<Rendezvous> rendezvous_;
  std::vector<TensorKey> keys_;
};

class TrystConsumer : public ConsumerEnd {
 public:
  // `address` is what TrystProducer::Address() said.
  TrystConsumer(Server* server, const std::string& variant, const ConsumerNeeds& needs)
      : needs_(needs),
        landing_(Has(variant, "landing") || Has(variant, "shm-ref")),
        many_(Has(variant, "many")),
        destinations_(needs.slots),
        held_(needs.slots) {
    const std::vector<std::string> words = absl::StrSplit(needs.address, ' ');
    producer_ = words[0];
    int64_t step;
    if (!absl::SimpleAtoi(words[1], &incarnation_) || !absl::SimpleAtoi(words[2], &step)) {
      Die("not an address: %s", needs.address.c_str());
    }
    consumer_ = server->worker();
    step_ = step;
    server->members()->Set(producer_, words[3]);
    auto rendezvous = server->steps()->StartStep(step);
    Check(rendezvous.status());
    rendezvous_ = *std::move(rendezvous);
    if (Has(variant, "executor")) args_.executor = server->executor();
  }
  const std::string& producer() const { return producer_; }

  void Ask(int slot, const std::string& key, char* into, size_t bytes) override {
    held_[slot] = Tensor();  // Its landing memory is free for the next tensor.
    if (many_) return AskLater(slot, key);
    RecvArgs args = args_;
    if (!landing_) args.destination = DestinationOf(slot, into, bytes);
    rendezvous_->RecvAsync(TensorKeyOf(key), args, [this, slot](Received&& received) {
      Land(slot, received.status, received.tensor);
    });
  }
  void Poll(bool) override {}

 protected:
  int64_t step() const { return step_; }
  // All tensors of one size share a destination.
  const Tensor& DestinationOf(int slot, char* into, size_t bytes) {
    Tensor& destination = destinations_[slot];
    if (!destination.valid() || destination.bytes() != bytes) {
      destination = *Tensor::Adopt(into, DType::kUint8, TensorShape({static_cast<int64_t>(bytes)}),
                                   MemorySpace(), [] {});
    }
    return destination;
  }
  void Land(int slot, const absl::Status& status, const Tensor& tensor) {
    Check(status);
    if (!needs_.keeps_nothing) held_[slot] = tensor;
    needs_.landed(slot, static_cast<const char*>(tensor.data()));
  }
  // A program makes its keys once. The harness passes texts, each always at the same address.
  const TensorKey& TensorKeyOf(const std::string& text) {
    TensorKey& key = keys_[&text];
    if (key.empty()) {
      int index = 0;
      for (size_t at = text.find("edge_") + 5; text[at] != '_'; ++at)
        index = index * 10 + text[at] - '0';
      key = MakeKey(producer_, incarnation_, consumer_, index);
    }
    return key;
  }

 private:
  static constexpr size_t kMany = 64;

  void AskLater(int slot, const std::string& key) {
    waiting_slots_.push_back(slot);
    waiting_keys_.push_back(TensorKeyOf(key));
    if (waiting_slots_.size() == kMany) AskMany();
  }
  void AskMany() {
    std::vector<TensorKey> keys = std::exchange(waiting_keys_, {});
    rendezvous_->RecvManyAsync(keys, args_,
                               [this, slots = std::exchange(waiting_slots_, {})](
                                   const absl::Status& first, absl::Span<Received> all) {
                                 Check(first);
                                 for (size_t i = 0; i < all.size(); ++i)
                                   Land(slots[i], all[i].status, all[i].tensor);
                                 if (!waiting_slots_.empty())
                                   AskMany();  // The round has no more keys to wait for.
                               });
  }
  const ConsumerNeeds needs_;
  const bool landing_, many_;
  RecvArgs args_;
  std::string producer_, consumer_;
  uint64_t incarnation_ = 0;
  int64_t step_ = 0;
  std::shared_ptr<Rendezvous> rendezvous_;
  absl::flat_hash_map<const std::string*, TensorKey> keys_;
  std::vector<Tensor> destinations_, held_;
  std::vector<int> waiting_slots_;
  std::vector<TensorKey> waiting_keys_;
};

// Receives by the C interface, one after the other, on a thread that waits for each.
class CConsumer final : public TrystConsumer {
 public:
  CConsumer(tryst_server* server, const std::string& variant, const ConsumerNeeds& needs)
      : TrystConsumer(server->server.get(), variant, needs),
        server_(server),
        thread_([this] { Run(); }) {}
  ~CConsumer() override {
    {
      MutexLock lock(&mu_);
      over_ = true;
      changed_.NotifyOne();
    }
    thread_.join();
  }
  void Ask(int slot, const std::string& key, char* into, size_t bytes) override {
    Asked asked = {slot, std::string(TensorKeyOf(key).text()), {}};
    asked.into.tensor = DestinationOf(slot, into, bytes);
    MutexLock lock(&mu_);
    asks_.push_back(std::move(asked));
    changed_.NotifyOne();
  }

 private:
  struct Asked {
    int slot = 0;
    std::string key;
    tryst_tensor into;
  };
  bool Next(Asked* next) {
    MutexLock lock(&mu_);
    while (asks_.empty() && !over_) changed_.Wait(&mu_);
    if (asks_.empty()) return false;
    *next = std::move(asks_.front());
    asks_.pop_front();
    return true;
  }
  void Run() {
    Asked asked;
    while (Next(&asked)) {
      tryst_tensor* tensor = nullptr;
      tryst_status* const status =
          tryst_recv(server_, step(), asked.key.c_str(), &asked.into, -1, &tensor);
      if (status != nullptr) Die("%s", tryst_status_message(status));
      const Tensor landed = tensor->tensor;
      tryst_tensor_free(tensor);
      Land(asked.slot, absl::OkStatus(), landed);
    }
  }

  tryst_server* const server_;
  Mutex mu_;
  CondVar changed_;
  std::deque<Asked> asks_ ABSL_GUARDED_BY(mu_);
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

// The process's server, and the producer end whose consumer is not known yet.
class Process {
 public:
  Process(bool is_child, bool capped) : is_child_(is_child), capped_(capped) {}

  std::unique_ptr<ProducerEnd> Produce(const std::string& variant,
                                       const std::vector<size_t>& sizes) {
    auto producer = std::make_unique<TrystProducer>(OpenServer(variant), variant, sizes);
    if (is_child_) {
      producer->SendTo(kParent);
    } else {
      producer_ = producer.get();
    }
    return producer;
  }
  std::unique_ptr<ConsumerEnd> Consume(const std::string& variant, const ConsumerNeeds& needs) {
    Server* const server = OpenServer(variant);
    std::unique_ptr<TrystConsumer> consumer;
    if (absl::EndsWith(variant, "-c")) {
      consumer = std::make_unique<CConsumer>(&handle_, variant, needs);
    } else {
      consumer = std::make_unique<TrystConsumer>(server, variant, needs);
    }
    if (producer_ != nullptr) std::exchange(producer_, nullptr)->SendTo(consumer->producer());
    return consumer;
  }

 private:
  static constexpr uint64_t kCapBytes = uint64_t{64} << 20;  // For the incast workload.
  static constexpr uint64_t kPlentyBytes = uint64_t{2} << 30;
  static constexpr uint64_t kSharedBytes = uint64_t{6}
                                           << 30;  // A cap: memory is taken when it is needed.
  static constexpr char kParent[] = "/job:consumer/replica:0/task:0";

  Server* OpenServer(const std::string& variant) {
    if (handle_.server != nullptr) return handle_.server.get();
    SetLogSink([](LogSeverity severity, const char*, int, absl::string_view text) {
      if (severity >= LogSeverity::kError) {
        fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
      }
    });
    ServerConfig config;
    config.job = is_child_ ? "producer" : "consumer";
    config.task = is_child_ ? getpid() : 0;
    config.protocol = Has(variant, "grpc") ? "grpc" : "grpc+verbs";
    config.nic = Has(variant, "stream") ? "grpc" : Has(variant, "grpc") ? "calls" : "soft";
    if (Has(variant, "pollers")) config.pollers = absl::StrCat(NumberAfter(variant, "pollers"));
    config.shm = Has(variant, "shm") ? "on" : "off";
    if (Has(variant, "ofi:")) {
      config.nic = variant;
      config.shm = "off";
    }
    config.shm_bytes = kSharedBytes;
    config.listen = "127.0.0.1:0";
    config.open_cluster = true;
    UseSecrets(variant, &config);
    config.landing_bytes = capped_ ? kCapBytes : kPlentyBytes;
    const auto open = [variant](const ServerConfig& with, NicPlace place) {
      if (Has(variant, "helpers0")) place.crew = nullptr;
      absl::StatusOr<std::vector<NicPath>> paths = OpenNics(with, place);
      if (!paths.ok()) return paths;
      for (NicPath& path : *paths) path.digests = path.digests || Has(variant, "digests");
      return paths;
    };
    auto parts = ServerBuilder().AddProtocol("grpc+verbs", OverNics(open)).Prepare(config);
    Check(parts.status());
    if (Has(variant, "sleeping")) parts->inner.poller.spin_us = 0;
    handle_.server = MakeServer(*std::move(parts));
    Check(handle_.server->Start());
    return handle_.server.get();
  }

  static void UseSecrets(const std::string& variant, ServerConfig* config) {
    const bool token = Has(variant, "token"), tls = Has(variant, "tls");
    config->insecure = !token && !tls;
    if (token) config->token_file = SecretFile("token");
    if (tls) {
      config->certificate_file = SecretFile("worker.crt");
      config->key_file = SecretFile("worker.key");
      config->ca_file = SecretFile("ca.crt");
    }
  }

  const bool is_child_;
  const bool capped_;
  tryst_server handle_;
  TrystProducer* producer_ = nullptr;
};

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  tryst::StopLookingForDeadlocks();
  const bool incast = argc > 2 && std::string(argv[2]) == "incast";
  auto* process = new tryst::Process(argc == 7, incast);  // Never deleted: the harness exits.
  tryst::Library library;
  library.threads = true;
  library.produce = [process](const std::string& variant, const std::vector<size_t>& sizes) {
    return process->Produce(variant, sizes);
  };
  library.consume = [process](const std::string& variant, const tryst::ConsumerNeeds& needs) {
    return process->Consume(variant, needs);
  };
  return tryst::RunLibrary(argc, argv, library);
}
