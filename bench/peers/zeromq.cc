// ZeroMQ, DEALER to ROUTER, zero copy from the producer. ipc, tcp.
#include <unistd.h>
#include <zmq.h>

#include "bench/peers/harness.h"

namespace tryst {
namespace {

void* OpenSocket(void* context, int type) {
  void* socket = zmq_socket(context, type);
  const int none = 0;  // No high-water mark: the harness bounds what is outstanding.
  zmq_setsockopt(socket, ZMQ_SNDHWM, &none, sizeof(none));
  zmq_setsockopt(socket, ZMQ_RCVHWM, &none, sizeof(none));
  zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof(none));
  return socket;
}

void KeepIt(void*, void*) {}

class ZeroMqProducer final : public ProducerEnd {
 public:
  ZeroMqProducer(const std::string& variant, const std::vector<size_t>& sizes)
      : table_(sizes), socket_(OpenSocket(zmq_ctx_new(), ZMQ_ROUTER)) {
    const std::string path = "ipc:///tmp/tryst-bench-" + std::to_string(getpid());
    if (zmq_bind(socket_, Has(variant, "ipc") ? path.c_str() : "tcp://127.0.0.1:*") != 0) {
      Die("zmq_bind: %s", zmq_strerror(zmq_errno()));
    }
  }
  Table& table() override { return table_; }
  std::string Address() override {
    char address[256];
    size_t length = sizeof(address);
    zmq_getsockopt(socket_, ZMQ_LAST_ENDPOINT, address, &length);
    return address;
  }
  // A request has the sender's identity, the slot and the key. An answer repeats these, then has
  // the bytes.
  void Poll(bool may_wait) override {
    zmq_msg_t who, asked, tensor;
    zmq_msg_init(&who);
    if (zmq_msg_recv(&who, socket_, may_wait ? 0 : ZMQ_DONTWAIT) < 0) return;
    zmq_msg_init(&asked);
    if (zmq_msg_recv(&asked, socket_, 0) < 0) return;
    const Held held = table_.Find(static_cast<const char*>(zmq_msg_data(&asked)) + sizeof(int));
    zmq_msg_send(&who, socket_, ZMQ_SNDMORE);
    zmq_msg_send(&asked, socket_, ZMQ_SNDMORE);
    if (held.bytes <= 512) {  // A copy costs less than an allocated reference.
      zmq_msg_init_size(&tensor, held.bytes);
      memcpy(zmq_msg_data(&tensor), held.data, held.bytes);
    } else {
      zmq_msg_init_data(&tensor, const_cast<char*>(held.data), held.bytes, KeepIt, nullptr);
    }
    zmq_msg_send(&tensor, socket_, 0);
  }

 private:
  Table table_;
  void* const socket_;
};

class ZeroMqConsumer final : public ConsumerEnd {
 public:
  ZeroMqConsumer(const std::string&, const ConsumerNeeds& needs)
      : needs_(needs), socket_(OpenSocket(zmq_ctx_new(), ZMQ_DEALER)), held_(needs.slots) {
    if (zmq_connect(socket_, needs.address.c_str()) != 0) Die("zmq_connect");
    for (zmq_msg_t& message : held_) zmq_msg_init(&message);
  }
  void Ask(int slot, const std::string& key, char*, size_t) override {
    char request[sizeof(int) + kKeyBytes];
    memcpy(request, &slot, sizeof(slot));
    memcpy(request + sizeof(slot), key.data(), kKeyBytes);
    if (zmq_send(socket_, request, sizeof(request), 0) < 0) Die("zmq_send");
  }
  // The consumer reads the library's own memory; there is no further copy.
  void Poll(bool may_wait) override {
    zmq_msg_t asked;
    zmq_msg_init(&asked);
    if (zmq_msg_recv(&asked, socket_, may_wait ? 0 : ZMQ_DONTWAIT) < 0) return;
    int slot;
    memcpy(&slot, zmq_msg_data(&asked), sizeof(slot));
    zmq_msg_close(&asked);
    zmq_msg_close(&held_[slot]);
    zmq_msg_init(&held_[slot]);
    if (zmq_msg_recv(&held_[slot], socket_, 0) < 0) Die("zmq_msg_recv");
    needs_.landed(slot, static_cast<const char*>(zmq_msg_data(&held_[slot])));
  }

 private:
  const ConsumerNeeds needs_;
  void* const socket_;
  std::vector<zmq_msg_t> held_;
};

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  tryst::Library library;
  library.produce = [](const std::string& variant, const std::vector<size_t>& sizes) {
    return std::make_unique<tryst::ZeroMqProducer>(variant, sizes);
  };
  library.consume = [](const std::string& variant, const tryst::ConsumerNeeds& needs) {
    return std::make_unique<tryst::ZeroMqConsumer>(variant, needs);
  };
  return tryst::RunLibrary(argc, argv, library);
}
