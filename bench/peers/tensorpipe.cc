// TensorPipe: transport-channel is shm-cma, shm-basic or uv-basic (TCP). Small tensors go
// as the payload of a message, over the transport; large ones over the channel.
#include <tensorpipe/tensorpipe.h>

#include <future>

#include "bench/peers/harness.h"

namespace tryst {
namespace {

constexpr size_t kPayloadBytes = 8 << 10;
constexpr size_t kSlotBytes = sizeof(int);

void Check(const tensorpipe::Error& error, const char* what) {
  if (error) Die("%s: %s", what, error.what().c_str());
}

std::shared_ptr<tensorpipe::Context> MakeContext(const std::string& variant) {
  auto context = std::make_shared<tensorpipe::Context>();
  if (Has(variant, "shm")) {
    context->registerTransport(0, "shm", tensorpipe::transport::shm::create());
  } else {
    context->registerTransport(0, "uv", tensorpipe::transport::uv::create());
  }
  if (Has(variant, "cma")) {
    context->registerChannel(0, "cma", tensorpipe::channel::cma::create());
  } else {
    context->registerChannel(0, "basic", tensorpipe::channel::basic::create());
  }
  return context;
}

class TensorPipeProducer final : public ProducerEnd {
 public:
  TensorPipeProducer(const std::string& variant, const std::vector<size_t>& sizes)
      : table_(sizes),
        context_(MakeContext(variant)),
        listener_(context_->listen({Has(variant, "shm") ? "shm://" : "uv://127.0.0.1"})),
        address_(listener_->url(Has(variant, "shm") ? "shm" : "uv")) {
    listener_->accept(
        [this](const tensorpipe::Error& error, std::shared_ptr<tensorpipe::Pipe> pipe) {
          Check(error, "accept");
          pipe_ = std::move(pipe);
          Read();
        });
  }
  Table& table() override { return table_; }
  std::string Address() override { return address_; }
  void Poll(bool) override {}

 private:
  void Read() {
    pipe_->readDescriptor([this](const tensorpipe::Error& error, tensorpipe::Descriptor asked) {
      if (error) return;  // The consumer has finished.
      pipe_->read({}, [](const tensorpipe::Error&) {});
      Answer(asked.metadata);
      Read();
    });
  }
  void Answer(const std::string& asked) {
    const Held held = table_.Find(asked.data() + kSlotBytes);
    tensorpipe::Message message;
    message.metadata = asked.substr(0, kSlotBytes);
    void* data = const_cast<char*>(held.data);
    if (held.bytes <= kPayloadBytes) {
      message.payloads.push_back({data, held.bytes, ""});
    } else {
      tensorpipe::Message::Tensor tensor;
      tensor.buffer = tensorpipe::CpuBuffer{.ptr = data};
      tensor.length = held.bytes;
      message.tensors.push_back(std::move(tensor));
    }
    pipe_->write(std::move(message), [](const tensorpipe::Error&) {});
  }

  Table table_;
  std::shared_ptr<tensorpipe::Context> context_;
  std::shared_ptr<tensorpipe::Listener> listener_;
  const std::string address_;
  std::shared_ptr<tensorpipe::Pipe> pipe_;
};

class TensorPipeConsumer final : public ConsumerEnd {
 public:
  TensorPipeConsumer(const std::string& variant, const ConsumerNeeds& needs)
      : needs_(needs),
        into_(needs.slots),
        context_(MakeContext(variant)),
        pipe_(context_->connect(needs.address)) {
    Read();
  }
  void Ask(int slot, const std::string& key, char* into, size_t) override {
    into_[slot] = into;
    tensorpipe::Message message;
    message.metadata.assign(reinterpret_cast<char*>(&slot), kSlotBytes);
    message.metadata += key;
    pipe_->write(std::move(message), [](const tensorpipe::Error&) {});
  }
  void Poll(bool) override {}

 private:
  void Read() {
    pipe_->readDescriptor([this](const tensorpipe::Error& error, tensorpipe::Descriptor coming) {
      if (error) return;
      int slot;
      memcpy(&slot, coming.metadata.data(), sizeof(slot));
      tensorpipe::Allocation allocation;
      if (!coming.payloads.empty()) {
        allocation.payloads.push_back({into_[slot]});
      } else {
        allocation.tensors.resize(1);
        allocation.tensors[0].buffer = tensorpipe::CpuBuffer{.ptr = into_[slot]};
      }
      pipe_->read(std::move(allocation), [this, slot](const tensorpipe::Error& error) {
        Check(error, "read");
        needs_.landed(slot, into_[slot]);
      });
      Read();
    });
  }

  const ConsumerNeeds needs_;
  std::vector<char*> into_;
  std::shared_ptr<tensorpipe::Context> context_;
  std::shared_ptr<tensorpipe::Pipe> pipe_;
};

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  tryst::Library library;
  library.threads = true;
  library.produce = [](const std::string& variant, const std::vector<size_t>& sizes) {
    return std::make_unique<tryst::TensorPipeProducer>(variant, sizes);
  };
  library.consume = [](const std::string& variant, const tryst::ConsumerNeeds& needs) {
    return std::make_unique<tryst::TensorPipeConsumer>(variant, needs);
  };
  return tryst::RunLibrary(argc, argv, library);
}
