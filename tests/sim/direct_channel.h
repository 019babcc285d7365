#ifndef TRYST_TESTS_SIM_DIRECT_CHANNEL_H_
#define TRYST_TESTS_SIM_DIRECT_CHANNEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "channel/channel.h"
#include "channel/transport.h"
#include "rendezvous/tensor_source.h"
#include "verbs/sim/sim_world.h"

namespace tryst {

// What gRPC is outside: the channel that always works, without a NIC. A request and its
// answer each take some virtual time; nothing is lost, and order is kept.
class DirectChannel final : public Channel {
 public:
  // The producer's source now; null while it is not up.
  using FindSource = std::function<TensorSource*()>;

  DirectChannel(SimWorld* world, std::string peer, FindSource find_source);
  ~DirectChannel() override;

  void Fetch(int64_t step_id, const TensorKey& key, const RecvArgs& args, DoneFn&& done) override;
  void AbortStep(int64_t step_id, const absl::Status& why) override;
  void Close(absl::Status why) override;
  bool Drained() const override { return closed_ && out_.empty(); }
  std::string Explain() const override { return peer_ + " directly"; }
  void ListOps(LiveOps* ops) const override;

 private:
  struct Op;

  void Ask(const std::shared_ptr<Op>& op);
  void OnTaken(const std::shared_ptr<Op>& op, absl::Status status);
  void GiveBack(Op* op);  // Nobody gets it here.
  // Ends the operation at the world's next event, never inside this call.
  void EndSoon(const std::shared_ptr<Op>& op, const absl::Status& why);
  void End(const std::shared_ptr<Op>& op, absl::Status status, Tensor tensor, bool is_dead);

  SimWorld* const world_;
  const std::string peer_;
  const FindSource find_source_;
  std::set<std::shared_ptr<Op>> out_;
  int64_t last_ns_ = 0;  // When the last request arrives: none overtakes another.
  bool closed_ = false;
  absl::Status why_closed_;
};

// The transport of such channels, behind all others.
class DirectTransport final : public Transport {
 public:
  using FindSource = std::function<TensorSource*(const std::string& peer)>;

  DirectTransport(SimWorld* world, FindSource find_source)
      : world_(world), find_source_(std::move(find_source)) {}
  const std::string& name() const override { return name_; }
  bool brings_any_size() const override { return true; }
  std::unique_ptr<Channel> MakeChannel(const std::string& peer, PathUser*) override {
    return std::make_unique<DirectChannel>(world_, peer,
                                           [this, peer] { return find_source_(peer); });
  }

 private:
  const std::string name_ = "direct";
  SimWorld* const world_;
  const FindSource find_source_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_SIM_DIRECT_CHANNEL_H_
