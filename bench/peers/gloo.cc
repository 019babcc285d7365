// Gloo's point-to-point calls over TCP: unbound buffers, which are matched by number. tcp.
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <deque>
#include <utility>

#include "bench/peers/harness.h"

namespace tryst {
namespace {

using Context = gloo::rendezvous::Context;
using Buffer = gloo::transport::UnboundBuffer;

constexpr int kProducer = 0, kConsumer = 1;
constexpr uint64_t kAsked = 128;  // How many requests it listens for, in rotation.
constexpr uint64_t kAnswers = 1000;

struct Request {
  uint64_t slot = 0;
  char key[kKeyBytes];
};

std::shared_ptr<Context> Connect(int rank, const std::string& folder) {
  gloo::transport::tcp::attr loopback;
  loopback.hostname = "127.0.0.1";
  auto device = gloo::transport::tcp::CreateDevice(loopback);
  gloo::rendezvous::FileStore store(folder);
  auto context = std::make_shared<Context>(rank, 2);
  context->setTimeout(std::chrono::seconds(60));
  context->connectFullMesh(store, device);
  return context;
}

class GlooProducer final : public ProducerEnd {
 public:
  explicit GlooProducer(const std::vector<size_t>& sizes) : table_(sizes), requests_(kAsked) {
    char folder[] = "/tmp/tryst-bench-gloo-XXXXXX";
    if (mkdtemp(folder) == nullptr) Die("no folder for Gloo's store");
    folder_ = folder;
  }
  Table& table() override { return table_; }
  std::string Address() override { return folder_; }
  // Gloo has no way to look without waiting.
  void Poll(bool) override try {
    if (context_ == nullptr) Listen();
    const uint64_t turn = turn_++ % kAsked;
    in_[turn]->waitRecv();
    const Request request = requests_[turn];
    Hear(turn);
    if (turn_ == 1) RemoveFolder();  // Both processes have connected.
    const Held held = table_.Find(request.key);
    auto& out = out_[held.data];
    if (out.first == nullptr) {
      out.first = context_->createUnboundBuffer(const_cast<char*>(held.data), held.bytes);
    }
    if (std::exchange(out.second, true)) out.first->waitSend();
    out.first->send(kConsumer, kAnswers + request.slot);
  } catch (const gloo::Exception&) {
    _exit(0);  // The other end is done.
  }

 private:
  void Listen() {
    context_ = Connect(kProducer, folder_);
    for (uint64_t turn = 0; turn < kAsked; ++turn) {
      in_.push_back(context_->createUnboundBuffer(&requests_[turn], sizeof(Request)));
      Hear(turn);
    }
  }
  void Hear(uint64_t turn) { in_[turn]->recv(kConsumer, turn); }
  void RemoveFolder() {
    if (std::system(("rm -rf " + folder_).c_str()) != 0) Die("cannot remove %s", folder_.c_str());
  }

  Table table_;
  std::string folder_;
  std::shared_ptr<Context> context_;
  std::vector<Request> requests_;
  std::vector<std::unique_ptr<Buffer>> in_;
  // By tensor: its buffer, and whether it was ever sent.
  std::unordered_map<const char*, std::pair<std::unique_ptr<Buffer>, bool>> out_;
  uint64_t turn_ = 0;
};

class GlooConsumer final : public ConsumerEnd {
 public:
  explicit GlooConsumer(const ConsumerNeeds& needs)
      : needs_(needs),
        context_(Connect(kConsumer, needs.address)),
        requests_(kAsked),
        into_(needs.slots) {
    for (Request& request : requests_) {
      out_.push_back(context_->createUnboundBuffer(&request, sizeof(Request)));
    }
  }
  void Ask(int slot, const std::string& key, char* into, size_t bytes) override {
    auto& destination = into_[slot];
    if (destination.first != into) {
      destination = {into, context_->createUnboundBuffer(into, needs_.max_bytes)};
    }
    destination.second->recv(kProducer, kAnswers + slot, 0, bytes);
    const uint64_t turn = turn_++ % kAsked;
    if (turn_ > kAsked) out_[turn]->waitSend();
    requests_[turn].slot = static_cast<uint64_t>(slot);
    memcpy(requests_[turn].key, key.data(), kKeyBytes);
    out_[turn]->send(kProducer, turn);
    asked_.push_back(slot);
  }
  // Tensors arrive in the order of the requests.
  void Poll(bool) override {
    if (asked_.empty()) return;
    const int slot = asked_.front();
    asked_.pop_front();
    into_[slot].second->waitRecv();
    needs_.landed(slot, into_[slot].first);
  }

 private:
  const ConsumerNeeds needs_;
  const std::shared_ptr<Context> context_;
  std::vector<Request> requests_;
  std::vector<std::unique_ptr<Buffer>> out_;
  std::vector<std::pair<char*, std::unique_ptr<Buffer>>> into_;
  std::deque<int> asked_;
  uint64_t turn_ = 0;
};

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  tryst::Library library;
  library.produce = [](const std::string&, const std::vector<size_t>& sizes) {
    return std::make_unique<tryst::GlooProducer>(sizes);
  };
  library.consume = [](const std::string&, const tryst::ConsumerNeeds& needs) {
    return std::make_unique<tryst::GlooConsumer>(needs);
  };
  return tryst::RunLibrary(argc, argv, library);
}
