#include <algorithm>

#include "absl/strings/str_cat.h"
#include "verbs/ibv/ibv_queue_pair.h"
#include "verbs/ibv/ibv_status.h"

// The transitions of a queue pair from reset to ready.
namespace tryst {
namespace {

// A sender without a receive waits 0.64 ms before it tries again.
constexpr uint8_t kMinRnrTimer = 12;
constexpr uint8_t kHopLimit = 64;

}  // namespace

absl::Status IbvQueuePair::ToInitialized() {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = options_.port;
  attributes.pkey_index = device_->settings().pkey_index.value_or(0);
  // Regions decide what is allowed; the queue pair allows everything.
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  return FromReturned(
      device_->calls().modify_qp(
          pair_, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
      "ibv_modify_qp to INIT");
}

absl::Status IbvQueuePair::AgreeOnExtensions(const QueuePairAddress& peer) {
  // Both ends compute the same result from the same two offers.
  if (local_.ece_vendor == 0 || local_.ece_vendor != peer.ece_vendor) return absl::OkStatus();
  ibv_ece agreed = {};
  agreed.vendor_id = local_.ece_vendor;
  agreed.options = local_.ece_options & peer.ece_options;
  return FromReturned(device_->calls().set_ece(pair_, &agreed), "ibv_set_ece");
}

void IbvQueuePair::FillPath(const QueuePairAddress& peer, ibv_ah_attr* path) const {
  const RdmaSettings& settings = device_->settings();
  path->port_num = options_.port;
  path->sl = settings.service_level.value_or(0);
  path->dlid = peer.lid;
  const bool other_subnet =
      peer.gid.global.subnet_prefix != local_.gid.global.subnet_prefix && !port_.ethernet;
  if (!port_.global_route && !other_subnet) return;
  path->is_global = 1;
  path->grh.dgid = peer.gid;
  path->grh.sgid_index = static_cast<uint8_t>(port_.gid.index);
  path->grh.hop_limit = kHopLimit;
  path->grh.traffic_class = settings.traffic_class.value_or(0);
}

absl::Status IbvQueuePair::ToReadyToReceive(const QueuePairAddress& peer) {
  const absl::StatusOr<ibv_mtu> mtu = MtuFromBytes(std::min(peer.mtu_bytes, local_.mtu_bytes));
  if (!mtu.ok()) return mtu.status();
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = *mtu;
  attributes.dest_qp_num = peer.number;
  attributes.rq_psn = peer.first_packet;
  attributes.max_dest_rd_atomic = local_.reads_served;
  attributes.min_rnr_timer = kMinRnrTimer;
  FillPath(peer, &attributes.ah_attr);
  return FromReturned(device_->calls().modify_qp(
                          pair_, &attributes,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                              IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
                      "ibv_modify_qp to RTR");
}

absl::Status IbvQueuePair::ToReadyToSend(const QueuePairAddress& peer) {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = options_.ack_timeout;
  attributes.retry_cnt = options_.retry_count;
  attributes.rnr_retry = options_.rnr_retry_count;
  attributes.sq_psn = local_.first_packet;
  attributes.max_rd_atomic = static_cast<uint8_t>(
      std::min<uint32_t>(device_->limits().max_reads_in_flight, peer.reads_served));
  return FromReturned(
      device_->calls().modify_qp(pair_, &attributes,
                                 IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                     IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
      "ibv_modify_qp to RTS");
}

absl::Status IbvQueuePair::Connect(absl::string_view remote_address) {
  if (state_ != QueuePairState::kReset) {
    return absl::FailedPreconditionError(absl::StrCat(
        "queue pair ", number(), " can be connected once, and is ", QueuePairStateName(state())));
  }
  const absl::StatusOr<QueuePairAddress> peer = DecodeQueuePairAddress(remote_address);
  if (!peer.ok()) return peer.status();
  if (peer->ethernet != local_.ethernet) {
    return absl::InvalidArgumentError(
        "one end's RDMA port is on Ethernet and the other's on InfiniBand: choose ports of one "
        "kind (RDMA_DEVICE)");
  }
  absl::Status status = AgreeOnExtensions(*peer);
  if (status.ok()) status = ToReadyToReceive(*peer);
  if (status.ok()) status = ToReadyToSend(*peer);
  if (!status.ok()) {
    const absl::Status cause = absl::Status(
        status.code(), absl::StrCat("cannot connect RDMA queue pair ", number(), " at ",
                                    port_.gid.why, " with queue pair ", peer->number, " at ",
                                    GidText(peer->gid), ": ", status.message()));
    StartBreak(cause);
    return cause;
  }
  state_ = QueuePairState::kReady;
  return absl::OkStatus();
}

}  // namespace tryst
