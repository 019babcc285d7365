#include "verbs/soft/soft_peer_reads.h"

#include <sys/uio.h>

#include <algorithm>

namespace tryst {

bool SoftPeerReads::OldestIsCut(uint64_t bytes) const {
  if (empty()) return false;
  const Read& read = reads_[begin_ % reads_.size()];
  return read.assigned > 0 && read.total >= bytes;
}

void SoftPeerReads::Add(const FrameHeader& frame) {
  Read& read = reads_[end_++ % reads_.size()];
  read.sequence = frame.sequence;
  read.remote_key = frame.remote_key;
  read.address = frame.address;
  read.total = frame.total;
  read.assigned = 0;
}

void SoftPeerReads::AddAnswer(FrameHeader header, SoftLane* lane) {
  Read& read = reads_[begin_ % reads_.size()];
  header.sequence = read.sequence;
  header.total = read.total;
  header.address = read.assigned;
  header.bytes =
      static_cast<uint32_t>(std::min<uint64_t>(read.total - read.assigned, kMaxFrameBytes));
  const iovec payload = {reinterpret_cast<void*>(read.address + read.assigned), header.bytes};
  lane->out->Add(header, &payload, header.bytes > 0 ? 1 : 0, SoftBatch::kNoWork);
  if (header.bytes > 0) {
    lane->out_remote_key = read.remote_key;
    lane->out_address = read.address + read.assigned;
    lane->out_bytes = header.bytes;
  }
  read.assigned += header.bytes;
  if (read.assigned == read.total) ++begin_;
}

}  // namespace tryst
