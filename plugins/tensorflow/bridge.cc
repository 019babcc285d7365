#include "plugins/tensorflow/bridge.h"

#include <cstdio>
#include <cstring>
#include <random>
#include <utility>

#include "plugins/tensorflow/tensors.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/logging.h"

namespace tryst_tensorflow {
namespace {

using tensorflow::Rendezvous;
using tensorflow::Tensor;

// A greeting's edge name begins with this. It must not contain ';'.
constexpr char kGreeting[] = "tryst greeting 1 ";

// A worker that does not answer, or cannot be reached, may be able to later. Each greeting costs it
// a kilobyte.
constexpr std::chrono::minutes kGreetAgain(10);

std::string Introduction(const Peer& self, uint32_t number) {
  char numbers[64];
  snprintf(numbers, sizeof(numbers), " %016llx %u",
           static_cast<unsigned long long>(self.incarnation), number);
  return kGreeting + self.name + " " + self.address + numbers;
}

bool ReadIntroduction(const std::string& text, Peer* peer, uint32_t* number) {
  char name[256];
  char address[256];
  unsigned long long incarnation = 0;
  const size_t before = sizeof(kGreeting) - 1;
  if (text.compare(0, before, kGreeting) != 0) return false;
  if (sscanf(text.c_str() + before, "%255s %255s %llx %u", name, address, &incarnation, number) !=
      4) {
    return false;
  }
  *peer = {name, address, incarnation};
  return true;
}

uint32_t NewNumber() {
  static std::mutex* const mu = new std::mutex;
  static std::mt19937* const random = new std::mt19937(std::random_device{}());
  const std::lock_guard<std::mutex> lock(*mu);
  return static_cast<uint32_t>((*random)() >> 1);
}

std::string WorkerOf(const tensorflow::DeviceNameUtils::ParsedName& device) {
  return "/job:" + device.job + "/replica:" + std::to_string(device.replica) +
         "/task:" + std::to_string(device.task);
}

// Whether the device's incarnation is the one that we know; stores it if we know none.
bool IsSameLife(Bridge::Producer* producer, const Rendezvous::ParsedKey& key) {
  const std::string_view device(key.src_device.data(), key.src_device.size());
  const auto it = producer->incarnations.find(device);
  if (it == producer->incarnations.end()) {
    producer->incarnations.emplace(device, key.src_incarnation);
    return true;
  }
  if (it->second == key.src_incarnation) return true;
  producer->incarnations.clear();
  producer->incarnations.emplace(device, key.src_incarnation);
  return false;
}

Answer Failure(const absl::Status& status) {
  Answer answer;
  answer.kind = Answer::kFailed;
  answer.code = static_cast<int32_t>(status.code());
  answer.message = std::string(status.message());
  return answer;
}

bool OnHost(const Rendezvous::ParsedKey& key, const Rendezvous::Args& send_args) {
  return key.src.type == "CPU" || send_args.alloc_attrs.on_host();
}

}  // namespace

Bridge::Bridge(const tensorflow::WorkerEnv* env, std::unique_ptr<Worker> worker)
    : env_(env), worker_(std::move(worker)) {}

Bridge::~Bridge() { Stop(); }

void Bridge::Stop() { worker_->Stop(); }

std::shared_ptr<ProducerLink> Bridge::LinkTo(const Rendezvous::ParsedKey& key, const Greet& greet,
                                             Producer** known, Why* why) {
  const std::string name = WorkerOf(key.src);
  uint32_t number = 0;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    std::unique_ptr<Producer>& producer = producers_[name];
    if (producer == nullptr) producer = std::make_unique<Producer>();
    *known = producer.get();
    *why = producer->state == Producer::kWithout ? Why::kNoPlugin : Why::kNotYet;
    const bool is_same = IsSameLife(producer.get(), key);
    if (is_same && producer->state == Producer::kMet && !producer->link->broken()) {
      return producer->link;
    }
    if (producer->state == Producer::kMeeting || worker_->stopped()) return nullptr;
    if (is_same && producer->state == Producer::kWithout &&
        std::chrono::steady_clock::now() < producer->again) {
      return nullptr;
    }
    producer->state = Producer::kMeeting;
    producer->link = nullptr;
    number = NewNumber();
  }
  *why = Why::kNotYet;
  greet(Introduction(worker_->self(), number),
        [this, name, number](std::string why_not, std::string answer) {
          OnAnswer(name, number, why_not, answer);
        });
  return nullptr;
}

void Bridge::OnAnswer(const std::string& name, uint32_t number, const std::string& why_not,
                      const std::string& answer) {
  Peer peer;
  uint32_t same = 0;
  if (!why_not.empty()) return SettleProducer(name, why_not, nullptr);
  if (!ReadIntroduction(answer, &peer, &same) || peer.name != name || same != number) {
    return SettleProducer(name, "it answered the greeting: " + answer, nullptr);
  }
  auto link = std::make_shared<ProducerLink>(worker_.get(), peer, number);
  worker_->Introduce(peer, [this, name, link](const std::string& why_not) {
    SettleProducer(name, why_not.empty() ? "" : "its Tryst port cannot be reached: " + why_not,
                   link);
  });
}

void Bridge::SettleProducer(const std::string& name, const std::string& why_not,
                            std::shared_ptr<ProducerLink> link) {
  const std::lock_guard<std::mutex> lock(mu_);
  Producer* producer = producers_[name].get();
  producer->state = why_not.empty() ? Producer::kMet : Producer::kWithout;
  producer->why = why_not;
  producer->again = std::chrono::steady_clock::now() + kGreetAgain;
  producer->link = why_not.empty() ? std::move(link) : nullptr;
  if (why_not.empty()) {
    LOG(INFO) << "Tryst: tensors of " + name + " come by Tryst";
  } else {
    LOG(WARNING) << "Tryst: tensors of " + name + " come by gRPC: " + why_not;
  }
}

bool Bridge::IsGreeting(absl::string_view edge) {
  return edge.substr(0, sizeof(kGreeting) - 1) == kGreeting;
}

void Bridge::AnswerGreeting(absl::string_view edge, std::function<void(std::string)> answer) {
  Peer peer;
  uint32_t number = 0;
  if (!ReadIntroduction(std::string(edge), &peer, &number))
    return answer("the greeting is malformed");
  worker_->Introduce(peer, [this, peer, number, answer](const std::string& why_not) {
    if (!why_not.empty()) return answer("it cannot reach us at " + peer.address + ": " + why_not);
    Meet(peer, number);
    answer(Introduction(worker_->self(), number));
  });
}

void Bridge::Meet(const Peer& peer, uint32_t number) {
  std::shared_ptr<ConsumerLink> old;
  std::shared_ptr<ConsumerLink> link;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    std::unique_ptr<Consumer>& consumer = consumers_[peer.name];
    if (consumer == nullptr) consumer = std::make_unique<Consumer>();
    old = consumer->link;
    Counts* counts = &consumer->counts;
    consumer->link = link = std::make_shared<ConsumerLink>(
        worker_.get(), peer, number,
        [this, counts](ConsumerLink::Wanted wanted) { Serve(counts, std::move(wanted)); },
        [this](int64_t step) { AbortLater(step); });
  }
  if (old != nullptr) old->Close();
  link->Listen();
}

absl::Status Bridge::CheckDevice(const Rendezvous::ParsedKey& key) const {
  tensorflow::Device* device = nullptr;
  const absl::Status status = env_->device_mgr->LookupDevice(key.src_device, &device);
  if (!status.ok() || device->attributes().incarnation() == key.src_incarnation) return status;
  return absl::AbortedError(
      "RecvTensor expects a different device incarnation: " + std::to_string(key.src_incarnation) +
      " vs. " + std::to_string(device->attributes().incarnation()) +
      ". Your worker job was probably restarted. Check your worker job for "
      "the reason why it was restarted.");
}

// The tensor stays in TensorFlow's table until it is requested, as it does for gRPC.
void Bridge::Serve(Counts* counts, ConsumerLink::Wanted wanted) {
  auto key = std::make_shared<Rendezvous::ParsedKey>();
  absl::Status status = Rendezvous::ParseKey(wanted.key->text, key.get());
  if (status.ok()) status = CheckDevice(*key);
  if (!status.ok()) return wanted.link->Send(wanted, Failure(status));
  const int64_t step = wanted.step;
  env_->rendezvous_mgr->RecvLocalAsync(
      step, *key,
      [this, counts, wanted = std::move(wanted), key](
          const absl::Status& status, const Rendezvous::Args& send_args, const Rendezvous::Args&,
          const Tensor& tensor,
          bool is_dead) { Deliver(counts, wanted, *key, status, send_args, tensor, is_dead); });
}

void Bridge::Deliver(Counts* counts, const ConsumerLink::Wanted& wanted,
                     const Rendezvous::ParsedKey& key, const absl::Status& status,
                     const Rendezvous::Args& send_args, const Tensor& tensor, bool is_dead) {
  if (!status.ok()) {
    ++counts->failed;
    return wanted.link->Send(wanted, Failure(status));
  }
  if (is_dead) {
    ++counts->dead;
    return wanted.link->Send(wanted, nullptr);
  }
  const bool can_travel = OnHost(key, send_args) && CanTravel(tensor);
  tryst_tensor* lent = can_travel ? Lend(worker_->library(), tensor) : nullptr;
  if (lent != nullptr) {
    ++counts->tensors;
    counts->bytes += static_cast<int64_t>(tensor.TotalBytes());
    return wanted.link->Send(wanted, lent);
  }
  // This tensor cannot travel by Tryst, so it waits for the consumer's RecvTensor in TensorFlow's
  // table.
  const auto step = env_->rendezvous_mgr->Find(wanted.step);
  const absl::Status kept = step->Send(key, send_args, tensor, is_dead);
  if (!kept.ok()) return wanted.link->Send(wanted, Failure(kept));
  ++counts->by_grpc[static_cast<int>(Why::kNotBytes)];
  wanted.link->Send(wanted, Answer());
}

// TensorFlow's worker does the same when a RecvTensor call is cancelled: it aborts after a moment,
// so that the cause is reported before this consequence.
void Bridge::AbortLater(int64_t step) {
  auto found = env_->rendezvous_mgr->Find(step);
  if (found->IsRemoteEagerContextDefault()) return;  // That rendezvous serves many operations.
  auto kept = std::make_shared<decltype(found)>(std::move(found));
  env_->env->SchedClosureAfter(1000 * 1000, [kept, step] {
    (*kept)->StartAbort(
        absl::AbortedError("Step " + std::to_string(step) + " cancelled. Cancelling rendezvous."));
  });
}

namespace {

std::string CountsText(const Counts& counts) {
  std::string text = std::to_string(counts.tensors) + " tensors, " + std::to_string(counts.bytes) +
                     " bytes by Tryst";
  if (counts.dead > 0) text += ", " + std::to_string(counts.dead) + " dead";
  if (counts.failed > 0) text += ", " + std::to_string(counts.failed) + " failed";
  for (int why = 0; why < kWhys; ++why) {
    if (counts.by_grpc[why] == 0) continue;
    text += ", " + std::to_string(counts.by_grpc[why]) + " by gRPC (" +
            Text(static_cast<Why>(why)) + ")";
  }
  return text;
}

std::string CountsJson(const std::string& name, const std::string& state, const Counts& counts) {
  std::string json = "{\"worker\":\"" + name + "\",\"state\":\"" + state + "\"";
  const auto add = [&json](const char* what, int64_t count) {
    json += std::string(",\"") + what + "\":" + std::to_string(count);
  };
  add("tensors", counts.tensors);
  add("bytes", counts.bytes);
  add("dead", counts.dead);
  add("failed", counts.failed);
  add("copied", counts.copied);
  static constexpr const char* kNames[kWhys] = {"no_plugin", "not_yet", "not_bytes",
                                                "device_memory", "key"};
  json += ",\"by_grpc\":{";
  for (int why = 0; why < kWhys; ++why) {
    json += std::string(why == 0 ? "" : ",") + "\"" + kNames[why] +
            "\":" + std::to_string(counts.by_grpc[why]);
  }
  return json + "}}";
}

const char* StateName(Bridge::Producer::State state) {
  static constexpr const char* kNames[] = {"unknown", "meeting", "met", "without"};
  return kNames[state];
}

}  // namespace

std::string Bridge::Explain() {
  std::string text;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    for (const auto& [name, producer] : producers_) {
      text += "from " + name + ": ";
      if (producer->state == Producer::kMet) text += "by Tryst";
      if (producer->state == Producer::kMeeting) text += "by gRPC until the two have met";
      if (producer->state == Producer::kWithout) text += "by gRPC: " + producer->why;
      text += "; so far " + CountsText(producer->counts) + "\n";
    }
    for (const auto& [name, consumer] : consumers_) {
      text += "to " + name + ": " + CountsText(consumer->counts) + "\n";
    }
  }
  return text + worker_->Explain();
}

std::string Bridge::StatsJson() {
  std::string json = "{\"worker\":\"" + worker_->self().name + "\",\"address\":\"" +
                     worker_->self().address + "\",\"from\":[";
  {
    const std::lock_guard<std::mutex> lock(mu_);
    const char* next = "";
    for (const auto& [name, producer] : producers_) {
      json += next + CountsJson(name, StateName(producer->state), producer->counts);
      next = ",";
    }
    json += "],\"to\":[";
    next = "";
    for (const auto& [name, consumer] : consumers_) {
      json += next + CountsJson(name, "met", consumer->counts);
      next = ",";
    }
  }
  return json + "],\"tryst\":" + worker_->StatsJson() + "}";
}

}  // namespace tryst_tensorflow
