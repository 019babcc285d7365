// libfabric, reliable datagrams with tags: shm, tcp (tcp;ofi_rxm) or udp (udp;ofi_rxd).
// Busy-polled.
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

#include "bench/peers/harness.h"

namespace tryst {
namespace {

constexpr uint64_t kRequestTag = uint64_t{1} << 40;
constexpr uint64_t kHelloTag = uint64_t{1} << 41;
constexpr int kRequestBuffers = 160;  // More than keys are ever outstanding.
constexpr size_t kHelloBytes = 512;

void Check(ssize_t result, const char* what) {
  if (result != 0) Die("%s: %s", what, fi_strerror(static_cast<int>(-result)));
}

enum class Kind { kHello, kRequest, kLanding, kSent };

struct Work {
  fi_context2 context;  // First member: completions point to it.
  Kind kind = Kind::kSent;
  int index = 0;
};

class FabricEnd {
 public:
  explicit FabricEnd(const std::string& variant) {
    const bool udp = Has(variant, "udp");
    const bool by_host = udp || Has(variant, "tcp");
    fi_info* hints = fi_allocinfo();
    hints->caps = FI_TAGGED;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup(udp ? "udp;ofi_rxd" : by_host ? "tcp;ofi_rxm" : "shm");
    Check(fi_getinfo(FI_VERSION(1, 17), by_host ? "127.0.0.1" : nullptr, nullptr,
                     FI_SOURCE * by_host, hints, &info_),
          "fi_getinfo");
    Check(fi_fabric(info_->fabric_attr, &fabric_, nullptr), "fi_fabric");
    Check(fi_domain(fabric_, info_, &domain_, nullptr), "fi_domain");
    fi_av_attr addresses{};
    addresses.type = FI_AV_TABLE;
    Check(fi_av_open(domain_, &addresses, &addresses_, nullptr), "fi_av_open");
    fi_cq_attr queue{};
    queue.format = FI_CQ_FORMAT_CONTEXT;
    queue.wait_obj = FI_WAIT_NONE;
    queue.size = 4096;
    Check(fi_cq_open(domain_, &queue, &queue_, nullptr), "fi_cq_open");
    Check(fi_endpoint(domain_, info_, &endpoint_, nullptr), "fi_endpoint");
    Check(fi_ep_bind(endpoint_, &addresses_->fid, 0), "fi_ep_bind");
    Check(fi_ep_bind(endpoint_, &queue_->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
    Check(fi_enable(endpoint_), "fi_enable");
  }
  std::string Address() {
    char address[kHelloBytes];
    size_t length = sizeof(address);
    Check(fi_getname(&endpoint_->fid, address, &length), "fi_getname");
    return std::string(address, length);
  }
  void SetPeer(const char* address) {
    if (fi_av_insert(addresses_, address, 1, &peer_, 0, nullptr) != 1) Die("fi_av_insert");
  }
  void Receive(void* into, size_t bytes, uint64_t tag, Work* work) {
    Post([&] { return fi_trecv(endpoint_, into, bytes, nullptr, peer_, tag, 0, work); });
  }
  void Send(const void* data, size_t bytes, uint64_t tag, Work* work) {
    if (bytes <= info_->tx_attr->inject_size && bytes <= 256) {
      Post([&] { return fi_tinject(endpoint_, data, bytes, peer_, tag); });
    } else {
      Post([&] { return fi_tsend(endpoint_, data, bytes, nullptr, peer_, tag, work); });
    }
  }
  // Calls `handle` with each completed request.
  template <typename Handle>
  void Poll(const Handle& handle) {
    ReadQueue();
    handling_.swap(completed_);
    for (Work* work : handling_) handle(work);
    handling_.clear();
  }

 private:
  void ReadQueue() {
    fi_cq_entry entries[32];
    const ssize_t count = fi_cq_read(queue_, entries, 32);
    if (count < 0 && count != -FI_EAGAIN) Die("fi_cq_read: %zd", count);
    for (ssize_t i = 0; i < count; ++i) {
      completed_.push_back(static_cast<Work*>(entries[i].op_context));
    }
  }
  template <typename Try>
  void Post(const Try& attempt) {
    for (;;) {
      const ssize_t result = attempt();
      if (result == 0) return;
      if (result != -FI_EAGAIN) Check(result, "post");
      ReadQueue();  // Reading completions makes room.
    }
  }

  fi_info* info_ = nullptr;
  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  fid_av* addresses_ = nullptr;
  fid_cq* queue_ = nullptr;
  fid_ep* endpoint_ = nullptr;
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
  std::vector<Work*> completed_, handling_;
};

struct Request {
  uint32_t slot;
  char key[kKeyBytes];
};

class FabricProducer final : public ProducerEnd {
 public:
  FabricProducer(const std::string& variant, const std::vector<size_t>& sizes)
      : table_(sizes),
        end_(variant),
        requests_(kRequestBuffers),
        asked_(kRequestBuffers),
        sent_(kRequestBuffers) {
    hello_work_.kind = Kind::kHello;
    end_.Receive(hello_, sizeof(hello_), kHelloTag, &hello_work_);
    for (int i = 0; i < kRequestBuffers; ++i) {
      asked_[i].kind = Kind::kRequest;
      asked_[i].index = i;
      Arm(i);
    }
  }
  Table& table() override { return table_; }
  std::string Address() override { return end_.Address(); }
  void Poll(bool) override {
    end_.Poll([this](Work* work) {
      if (work->kind == Kind::kHello) end_.SetPeer(hello_);
      if (work->kind != Kind::kRequest) return;
      const Request request = requests_[work->index];
      Arm(work->index);
      const Held held = table_.Find(request.key);
      end_.Send(held.data, held.bytes, request.slot, &sent_[request.slot]);
    });
  }

 private:
  void Arm(int index) {
    end_.Receive(&requests_[index], sizeof(Request), kRequestTag, &asked_[index]);
  }

  Table table_;
  FabricEnd end_;
  char hello_[kHelloBytes];
  Work hello_work_;
  std::vector<Request> requests_;
  std::vector<Work> asked_, sent_;
};

class FabricConsumer final : public ConsumerEnd {
 public:
  FabricConsumer(const std::string& variant, const ConsumerNeeds& needs)
      : needs_(needs),
        end_(variant),
        hello_(end_.Address()),
        requests_(needs.slots),
        landing_(needs.slots),
        sent_(needs.slots),
        into_(needs.slots) {
    hello_.resize(kHelloBytes);
    end_.SetPeer(needs.address.data());
    end_.Send(hello_.data(), hello_.size(), kHelloTag, &hello_work_);
  }
  void Ask(int slot, const std::string& key, char* into, size_t bytes) override {
    into_[slot] = into;
    landing_[slot].kind = Kind::kLanding;
    landing_[slot].index = slot;
    end_.Receive(into, bytes, static_cast<uint64_t>(slot), &landing_[slot]);
    requests_[slot].slot = static_cast<uint32_t>(slot);
    memcpy(requests_[slot].key, key.data(), kKeyBytes);
    end_.Send(&requests_[slot], sizeof(Request), kRequestTag, &sent_[slot]);
  }
  void Poll(bool) override {
    end_.Poll([this](Work* work) {
      if (work->kind == Kind::kLanding) needs_.landed(work->index, into_[work->index]);
    });
  }

 private:
  const ConsumerNeeds needs_;
  FabricEnd end_;
  std::string hello_;
  Work hello_work_;
  std::vector<Request> requests_;
  std::vector<Work> landing_, sent_;
  std::vector<char*> into_;
};

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  tryst::Library library;
  library.produce = [](const std::string& variant, const std::vector<size_t>& sizes) {
    return std::make_unique<tryst::FabricProducer>(variant, sizes);
  };
  library.consume = [](const std::string& variant, const tryst::ConsumerNeeds& needs) {
    return std::make_unique<tryst::FabricConsumer>(variant, needs);
  };
  return tryst::RunLibrary(argc, argv, library);
}
