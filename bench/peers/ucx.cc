// UCX. A request is an active message; its answer is a tagged send into the posted receive.
// shm is posix, sysv and cma; tcp is over loopback. It is polled without sleeping, as UCX
// expects.
#include <ucp/api/ucp.h>

#include "bench/peers/harness.h"

namespace tryst {
namespace {

constexpr unsigned kHelloId = 0;
constexpr unsigned kRequestId = 1;

void Check(ucs_status_t status, const char* what) {
  if (status != UCS_OK) Die("%s: %s", what, ucs_status_string(status));
}

void FreeRequest(void* request, ucs_status_t status, void*) {
  Check(status, "send");
  ucp_request_free(request);
}

class UcxEnd {
 public:
  explicit UcxEnd(const std::string& variant) {
    setenv("UCX_TLS", Has(variant, "tcp") ? "tcp,self" : "posix,sysv,cma,self", 1);
    if (Has(variant, "tcp")) setenv("UCX_NET_DEVICES", "lo", 1);
    ucp_config_t* config;
    Check(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read");
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_TAG | UCP_FEATURE_AM;
    ucp_context_h context;
    Check(ucp_init(&params, config, &context), "ucp_init");
    ucp_config_release(config);
    ucp_worker_params_t worker{};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = UCS_THREAD_MODE_SINGLE;
    Check(ucp_worker_create(context, &worker, &worker_), "ucp_worker_create");
  }
  std::string Address() {
    ucp_address_t* address;
    size_t length;
    Check(ucp_worker_get_address(worker_, &address, &length), "ucp_worker_get_address");
    std::string bytes(reinterpret_cast<char*>(address), length);
    ucp_worker_release_address(worker_, address);
    return bytes;
  }
  void Connect(const std::string& address) {
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    params.address = reinterpret_cast<const ucp_address_t*>(address.data());
    Check(ucp_ep_create(worker_, &params, &endpoint_), "ucp_ep_create");
  }
  void SendMessage(unsigned id, const std::string& bytes) {
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_FLAGS;
    params.cb.send = FreeRequest;
    params.flags = UCP_AM_SEND_FLAG_EAGER;
    const ucs_status_ptr_t sent =
        ucp_am_send_nbx(endpoint_, id, nullptr, 0, bytes.data(), bytes.size(), &params);
    if (UCS_PTR_IS_ERR(sent)) Die("ucp_am_send_nbx");
  }
  void OnMessage(unsigned id, ucp_am_recv_callback_t call, void* argument) {
    ucp_am_handler_param_t params{};
    params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                        UCP_AM_HANDLER_PARAM_FIELD_ARG;
    params.id = id;
    params.cb = call;
    params.arg = argument;
    Check(ucp_worker_set_am_recv_handler(worker_, &params), "ucp_worker_set_am_recv_handler");
  }

  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
};

class UcxProducer final : public ProducerEnd {
 public:
  UcxProducer(const std::string& variant, const std::vector<size_t>& sizes)
      : table_(sizes), end_(variant) {
    end_.OnMessage(kHelloId, OnHello, this);
    end_.OnMessage(kRequestId, OnRequest, this);
  }
  Table& table() override { return table_; }
  std::string Address() override { return end_.Address(); }
  void Poll(bool) override {
    ucp_worker_progress(end_.worker_);
    if (asked_.empty()) return;
    answering_.swap(asked_);
    for (const Asked& asked : answering_) {
      const Held held = table_.Find(asked.key);
      ucp_request_param_t params{};
      params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK;
      params.cb.send = FreeRequest;
      const ucs_status_ptr_t sent =
          ucp_tag_send_nbx(end_.endpoint_, held.data, held.bytes, asked.slot, &params);
      if (UCS_PTR_IS_ERR(sent)) Die("ucp_tag_send_nbx");
    }
    answering_.clear();
  }

 private:
  struct Asked {
    uint32_t slot;
    char key[kKeyBytes];
  };
  static ucs_status_t OnHello(void* self, const void*, size_t, void* data, size_t bytes,
                              const ucp_am_recv_param_t*) {
    static_cast<UcxProducer*>(self)->end_.Connect(std::string(static_cast<char*>(data), bytes));
    return UCS_OK;
  }
  static ucs_status_t OnRequest(void* self, const void*, size_t, void* data, size_t,
                                const ucp_am_recv_param_t*) {
    Asked asked;
    memcpy(&asked.slot, data, sizeof(asked.slot));
    memcpy(asked.key, static_cast<char*>(data) + sizeof(asked.slot), kKeyBytes);
    static_cast<UcxProducer*>(self)->asked_.push_back(asked);
    return UCS_OK;
  }

  Table table_;
  UcxEnd end_;
  std::vector<Asked> asked_, answering_;
};

class UcxConsumer final : public ConsumerEnd {
 public:
  UcxConsumer(const std::string& variant, const ConsumerNeeds& needs)
      : needs_(needs),
        end_(variant),
        requests_(needs.slots),
        into_(needs.slots),
        landing_(needs.slots) {
    end_.Connect(needs.address);
    hello_ = end_.Address();
    end_.SendMessage(kHelloId, hello_);
  }
  void Ask(int slot, const std::string& key, char* into, size_t bytes) override {
    into_[slot] = into;
    ucp_request_param_t params{};
    params.op_attr_mask =
        UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    params.cb.recv = OnReceived;
    landing_[slot] = {this, slot};
    params.user_data = &landing_[slot];
    const ucs_status_ptr_t posted =
        ucp_tag_recv_nbx(end_.worker_, into, bytes, static_cast<uint64_t>(slot), ~0ull, &params);
    if (UCS_PTR_IS_ERR(posted)) Die("ucp_tag_recv_nbx");
    std::string& request = requests_[slot];
    request.assign(reinterpret_cast<char*>(&slot), sizeof(slot));
    request += key;
    end_.SendMessage(kRequestId, request);
  }
  void Poll(bool) override {
    ucp_worker_progress(end_.worker_);
    if (landed_.empty()) return;
    reporting_.swap(landed_);
    for (int slot : reporting_) needs_.landed(slot, into_[slot]);
    reporting_.clear();
  }

 private:
  struct Landing {
    UcxConsumer* consumer;
    int slot;
  };
  static void OnReceived(void* request, ucs_status_t status, const ucp_tag_recv_info_t*,
                         void* data) {
    Check(status, "receive");
    auto* landing = static_cast<Landing*>(data);
    landing->consumer->landed_.push_back(landing->slot);
    ucp_request_free(request);
  }

  const ConsumerNeeds needs_;
  UcxEnd end_;
  std::string hello_;
  std::vector<std::string> requests_;  // Each is kept until its answer has come.
  std::vector<char*> into_;
  std::vector<Landing> landing_;
  std::vector<int> landed_, reporting_;
};

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  tryst::Library library;
  library.produce = [](const std::string& variant, const std::vector<size_t>& sizes) {
    return std::make_unique<tryst::UcxProducer>(variant, sizes);
  };
  library.consume = [](const std::string& variant, const tryst::ConsumerNeeds& needs) {
    return std::make_unique<tryst::UcxConsumer>(variant, needs);
  };
  return tryst::RunLibrary(argc, argv, library);
}
