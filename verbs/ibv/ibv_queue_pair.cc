#include "verbs/ibv/ibv_queue_pair.h"

#include <arpa/inet.h>

#include <algorithm>
#include <limits>

#include "absl/base/optimization.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "verbs/ibv/ibv_status.h"

namespace tryst {
namespace {

constexpr uint8_t kMaxRetries = 6;  // 7 means "for ever" on some NICs.
constexpr uint32_t kPacketNumberMask = (1u << 24) - 1;

uint32_t RoundUpToPowerOfTwo(uint32_t value) {
  uint32_t power = 1;
  while (power < value) power <<= 1;
  return power;
}

absl::Status CheckOptions(const IbvDevice& device, const QueuePairOptions& options) {
  const NicLimits& limits = device.limits();
  const auto in = [](uint64_t value, uint64_t least, uint64_t most, const char* what) {
    if (value >= least && value <= most) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(what, " is ", value, ", and must be from ", least, " to ", most));
  };
  for (const absl::Status& status : {
           in(options.send_depth, 1, limits.max_send_depth, "send_depth"),
           in(options.receive_depth, 1, limits.max_receive_depth, "receive_depth"),
           in(options.max_entries, 1, limits.max_entries, "max_entries"),
           in(options.max_inline_bytes, 0, limits.max_inline_bytes, "max_inline_bytes"),
           in(options.port, 1, device.port_count(), "port"),
           in(options.ack_timeout, 1, 31, "ack_timeout"),
           in(options.retry_count, 0, kMaxRetries, "retry_count"),
           in(options.rnr_retry_count, 0, 7, "rnr_retry_count"),
       }) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// The user's settings override what the channel asks for.
QueuePairOptions WithSettings(QueuePairOptions options, const RdmaSettings& settings) {
  options.ack_timeout = settings.ack_timeout.value_or(options.ack_timeout);
  if (settings.retry_count) options.retry_count = std::min(*settings.retry_count, kMaxRetries);
  return options;
}

bool HasRemoteAddress(SendOp op) {
  return op == SendOp::kWrite || op == SendOp::kWriteWithImmediate || op == SendOp::kRead;
}

ibv_wr_opcode VerbsOp(SendOp op) {
  switch (op) {
    case SendOp::kWrite:
      return IBV_WR_RDMA_WRITE;
    case SendOp::kWriteWithImmediate:
      return IBV_WR_RDMA_WRITE_WITH_IMM;
    case SendOp::kRead:
      return IBV_WR_RDMA_READ;
    case SendOp::kSend:
      return IBV_WR_SEND;
  }
  return IBV_WR_SEND;
}

CompletionOp OpOf(const ibv_wc& work) {
  switch (work.opcode) {
    case IBV_WC_RDMA_READ:
      return CompletionOp::kRead;
    case IBV_WC_RECV:
      return CompletionOp::kReceive;
    case IBV_WC_RECV_RDMA_WITH_IMM:
      return CompletionOp::kReceiveWriteImmediate;
    default:
      return CompletionOp::kSend;
  }
}

ibv_sge* FillEntries(absl::Span<const Entry> from, ibv_sge* to) {
  for (const Entry& entry : from) {
    *to++ = {entry.address, static_cast<uint32_t>(entry.bytes), entry.local_key};
  }
  return to;
}

}  // namespace

WorkLedger::WorkLedger(uint32_t depth)
    : depth_(depth), mask_(RoundUpToPowerOfTwo(depth) - 1), ids_(static_cast<size_t>(mask_) + 1) {}

absl::StatusOr<std::unique_ptr<QueuePair>> IbvQueuePair::Create(IbvDevice* device,
                                                                const QueuePairOptions& wanted,
                                                                const std::string& sysfs_root) {
  const QueuePairOptions options = WithSettings(wanted, device->settings());
  absl::Status status = CheckOptions(*device, options);
  if (!status.ok()) return status;
  auto* const completions = dynamic_cast<IbvCompletionQueue*>(options.completions);
  if (completions == nullptr || completions->device() != device) {
    return absl::InvalidArgumentError("a queue pair needs a completion queue of the same NIC");
  }
  IbvPort port =
      ProbePort(device->calls(), device->context(), options.port, device->settings(), sysfs_root);
  if (!port.usable.ok()) return port.usable;
  const uint32_t works = options.send_depth + options.receive_depth;
  const absl::StatusOr<uint32_t> slot = completions->Reserve(works);
  if (!slot.ok()) return slot.status();
  ibv_qp_init_attr attributes = {};
  attributes.send_cq = completions->verbs();
  attributes.recv_cq = completions->verbs();
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap = {options.send_depth + 1, options.receive_depth + 1, options.max_entries,
                    options.max_entries, options.max_inline_bytes};
  const absl::StatusOr<ibv_qp*> made =
      FromPointer(device->calls().create_qp(device->domain(), &attributes), "ibv_create_qp");
  if (!made.ok()) {
    completions->Unreserve(works);
    return made.status();
  }
  std::unique_ptr<IbvQueuePair> pair(
      new IbvQueuePair(device, options, std::move(port), *made, *slot));
  status = pair->ToInitialized();
  if (!status.ok()) return status;
  return std::unique_ptr<QueuePair>(std::move(pair));
}

IbvQueuePair::IbvQueuePair(IbvDevice* device, const QueuePairOptions& options, IbvPort port,
                           ibv_qp* pair, uint32_t slot)
    : device_(device),
      completions_(static_cast<IbvCompletionQueue*>(options.completions)),
      options_(options),
      port_(std::move(port)),
      pair_(pair),
      slot_(slot),
      max_inline_bytes_(options.max_inline_bytes),
      sends_(options.send_depth),
      receives_(options.receive_depth),
      send_batch_(options.send_depth),
      receive_batch_(options.receive_depth),
      send_entries_(static_cast<size_t>(options.send_depth) * options.max_entries),
      receive_entries_(static_cast<size_t>(options.receive_depth) * options.max_entries) {
  device_->OnMade();
  completions_->Attach(slot_, this);
  local_.number = pair_->qp_num;
  local_.first_packet = device_->Random() & kPacketNumberMask;
  local_.lid = port_.lid;
  local_.ethernet = port_.ethernet;
  local_.mtu_bytes = port_.mtu_bytes;
  local_.reads_served = device_->reads_served();
  local_.gid = port_.gid.gid;
  ibv_ece extensions = {};
  const IbvCalls& calls = device_->calls();
  // If the driver does not support them it says so, and that is not an error.
  if (calls.query_ece && calls.set_ece && calls.query_ece(pair_, &extensions) == 0) {
    local_.ece_vendor = extensions.vendor_id;
    local_.ece_options = extensions.options;
  }
}

IbvQueuePair::~IbvQueuePair() {
  const absl::Status status = FromReturned(device_->calls().destroy_qp(pair_), "ibv_destroy_qp");
  if (!status.ok())
    TRYST_LOG(Error) << "queue pair " << local_.number
                     << " stays until the process ends, as the NIC does not destroy it: " << status;
  completions_->Remove(slot_, local_.number, options_.send_depth + options_.receive_depth);
  device_->OnGone();
}

QueuePairState IbvQueuePair::state() const {
  const bool back =
      marked_ && receive_flushed_ && sends_.outstanding() == 0 && receives_.outstanding() == 0;
  return back ? QueuePairState::kDrained : state_;
}

std::string IbvQueuePair::LocalAddress() const { return EncodeQueuePairAddress(local_); }

absl::Status IbvQueuePair::CheckEntries(absl::Span<const Entry> entries, uint64_t* bytes) const {
  if (entries.size() > options_.max_entries) {
    return absl::InvalidArgumentError(absl::StrCat(
        entries.size(), " pieces of memory are in one transfer, and the queue pair takes ",
        options_.max_entries));
  }
  const uint64_t most = device_->limits().max_message_bytes;
  *bytes = 0;
  for (const Entry& entry : entries) {
    // Written so that nothing overflows.
    if (entry.bytes > most - *bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("a transfer of more than ", most,
                       " bytes is not possible on this NIC: send it in pieces"));
    }
    *bytes += entry.bytes;
  }
  return absl::OkStatus();
}

absl::Status IbvQueuePair::CheckSend(const SendWork& work) const {
  uint64_t bytes;
  const absl::Status status = CheckEntries(work.entries, &bytes);
  if (ABSL_PREDICT_FALSE(!status.ok())) return status;
  if (work.op == SendOp::kRead && device_->limits().max_reads_in_flight == 0) {
    return absl::InvalidArgumentError("this NIC has no RDMA READ");
  }
  if (!work.inline_data) return absl::OkStatus();
  if (work.op == SendOp::kRead) return absl::InvalidArgumentError("an RDMA READ cannot be inline");
  if (bytes > max_inline_bytes_) {
    return absl::InvalidArgumentError(
        absl::StrCat(bytes, " bytes are inline in a transfer, and the queue pair was made for ",
                     max_inline_bytes_));
  }
  return absl::OkStatus();
}

void IbvQueuePair::FillSend(const SendWork& work, uint32_t sequence, ibv_send_wr* out,
                            ibv_sge* entries) {
  out->wr_id = VerbsId(0, sequence);
  out->opcode = VerbsOp(work.op);
  out->send_flags =
      (work.signaled ? IBV_SEND_SIGNALED : 0) | (work.inline_data ? IBV_SEND_INLINE : 0);
  out->sg_list = entries;
  if (work.op == SendOp::kWriteWithImmediate) out->imm_data = htonl(work.immediate);
  if (HasRemoteAddress(work.op)) {
    out->wr.rdma.remote_addr = work.remote_address;
    out->wr.rdma.rkey = work.remote_key;
  }
  out->num_sge = static_cast<int>(FillEntries(work.entries, entries) - entries);
}

absl::Status IbvQueuePair::PostSend(absl::Span<const SendWork> works) {
  if (ABSL_PREDICT_FALSE(state_ != QueuePairState::kReady)) {
    return absl::FailedPreconditionError(absl::StrCat("queue pair ", number(), " is ",
                                                      QueuePairStateName(state()),
                                                      cause_.ok() ? "" : ": ", cause_.message()));
  }
  if (works.empty()) return absl::OkStatus();
  if (works.size() > send_room()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        works.size(), " transfers are posted, and the queue pair has room for ", send_room()));
  }
  for (const SendWork& work : works) {
    const absl::Status status = CheckSend(work);
    if (ABSL_PREDICT_FALSE(!status.ok())) return status;
  }
  FillBatch(works);
  ibv_send_wr* refused = nullptr;
  const int returned = ibv_post_send(pair_, send_batch_.data(), &refused);
  if (ABSL_PREDICT_TRUE(returned == 0)) {
    sends_.Post(static_cast<uint32_t>(works.size()));
    return absl::OkStatus();
  }
  const uint32_t posted =
      refused == nullptr ? 0 : static_cast<uint32_t>(refused - send_batch_.data());
  sends_.Post(posted);
  return OnRefused(returned, "ibv_post_send", posted);
}

void IbvQueuePair::FillBatch(absl::Span<const SendWork> works) {
  const uint32_t first = sends_.next();
  ibv_sge* entries = send_entries_.data();
  for (size_t i = 0; i < works.size(); ++i) {
    const uint32_t sequence = first + static_cast<uint32_t>(i);
    sends_.id(sequence) = works[i].id;
    FillSend(works[i], sequence, &send_batch_[i], entries);
    entries += send_batch_[i].num_sge;
    send_batch_[i].next = &send_batch_[i] + 1;
  }
  send_batch_[works.size() - 1].next = nullptr;
}

absl::Status IbvQueuePair::PostReceive(absl::Span<const ReceiveWork> works) {
  if (ABSL_PREDICT_FALSE(state_ == QueuePairState::kBroken)) {
    return absl::FailedPreconditionError(absl::StrCat("queue pair ", number(), " is ",
                                                      QueuePairStateName(state()),
                                                      cause_.ok() ? "" : ": ", cause_.message()));
  }
  if (works.empty()) return absl::OkStatus();
  if (works.size() > receives_.room()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        works.size(), " receives are posted, and the queue pair has room for ", receives_.room()));
  }
  uint64_t bytes;
  for (const ReceiveWork& work : works) {
    const absl::Status status = CheckEntries(work.entries, &bytes);
    if (ABSL_PREDICT_FALSE(!status.ok())) return status;
  }
  const uint32_t first = receives_.next();
  ibv_sge* entries = receive_entries_.data();
  for (size_t i = 0; i < works.size(); ++i) {
    const uint32_t sequence = first + static_cast<uint32_t>(i);
    receives_.id(sequence) = works[i].id;
    ibv_recv_wr& out = receive_batch_[i];
    out.wr_id = VerbsId(kReceiveBit, sequence);
    out.sg_list = entries;
    out.num_sge = static_cast<int>(works[i].entries.size());
    out.next = &out + 1;
    entries = FillEntries(works[i].entries, entries);
  }
  receive_batch_[works.size() - 1].next = nullptr;
  ibv_recv_wr* refused = nullptr;
  const int returned = ibv_post_recv(pair_, receive_batch_.data(), &refused);
  if (ABSL_PREDICT_TRUE(returned == 0)) {
    receives_.Post(static_cast<uint32_t>(works.size()));
    return absl::OkStatus();
  }
  const uint32_t posted =
      refused == nullptr ? 0 : static_cast<uint32_t>(refused - receive_batch_.data());
  receives_.Post(posted);
  return OnRefused(returned, "ibv_post_recv", posted);
}

absl::Status IbvQueuePair::OnRefused(int returned, absl::string_view call, size_t posted) {
  const absl::Status status = FromReturned(returned, call);
  if (posted == 0) return status;
  const absl::Status cause = absl::UnavailableError(absl::StrCat(
      "the NIC took ", posted, " of several transfers, then refused one: ", status.message()));
  StartBreak(cause);
  return cause;
}

void IbvQueuePair::Break() { StartBreak(absl::CancelledError("its owner closed the queue pair")); }

void IbvQueuePair::StartBreak(absl::Status cause) {
  if (state_ == QueuePairState::kBroken) return;
  state_ = QueuePairState::kBroken;
  cause_ = std::move(cause);
  absl::Status status = ToError();
  if (status.ok()) status = PostMarkers();
  // Soft-RoCE looks for receives to flush only when it is told to break.
  if (status.ok()) status = ToError();
  marked_ = status.ok();
  if (!marked_) {
    TRYST_LOG(Error) << "queue pair " << number()
                     << " will give back its transfers only when it is destroyed: " << status;
  }
}

absl::Status IbvQueuePair::ToError() {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_ERR;
  return FromReturned(device_->calls().modify_qp(pair_, &attributes, IBV_QP_STATE),
                      "ibv_modify_qp to ERR");
}

absl::Status IbvQueuePair::PostMarkers() {
  ibv_recv_wr receive = {};
  receive.wr_id = VerbsId(kReceiveBit | kMarkerBit, 0);
  ibv_recv_wr* refused_receive = nullptr;
  const absl::Status status =
      FromReturned(ibv_post_recv(pair_, &receive, &refused_receive), "ibv_post_recv of a marker");
  if (!status.ok()) return status;
  ibv_send_wr send = {};
  send.wr_id = VerbsId(kMarkerBit, 0);
  send.opcode = IBV_WR_SEND;
  send.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* refused_send = nullptr;
  return FromReturned(ibv_post_send(pair_, &send, &refused_send), "ibv_post_send of a marker");
}

bool IbvQueuePair::OnCompletion(const ibv_wc& work, Completion* out) {
  const uint32_t sequence = static_cast<uint32_t>(work.wr_id);
  const bool receive = (work.wr_id & kReceiveBit) != 0;
  WorkLedger& ledger = receive ? receives_ : sends_;
  if (ABSL_PREDICT_FALSE((work.wr_id & kMarkerBit) != 0)) {
    ledger.RetireAll();
    receive_flushed_ |= receive;
    return false;
  }
  out->id = ledger.id(sequence);
  if (ABSL_PREDICT_FALSE(!ledger.Retire(sequence))) {
    TRYST_LOG(Error) << "queue pair " << number()
                     << ": the NIC reports the end of a transfer that is not under way, and Tryst "
                        "ignores the report";
    return false;
  }
  out->status = FromWorkStatus(work.status);
  out->queue_pair = local_.number;
  out->vendor_error = work.vendor_err;
  if (ABSL_PREDICT_FALSE(work.status != IBV_WC_SUCCESS)) {
    // Now only the id and the status are defined.
    out->op = CompletionOp::kSend;
    out->immediate = 0;
    out->bytes = 0;
    receive_flushed_ |= receive && work.status == IBV_WC_WR_FLUSH_ERR;
    StartBreak(StatusOfWork(work.status, work.vendor_err, number()));
    return true;
  }
  out->op = OpOf(work);
  out->immediate = (work.wc_flags & IBV_WC_WITH_IMM) != 0 ? ntohl(work.imm_data) : 0;
  out->bytes = receive ? work.byte_len : 0;
  return true;
}

}  // namespace tryst
