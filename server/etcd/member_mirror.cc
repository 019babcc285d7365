#include <set>
#include <utility>
#include <vector>

#include "base/log.h"
#include "server/etcd/etcd_members.h"
#include "server/etcd/member_record.h"

namespace tryst {

MemberMirror::MemberMirror(std::string prefix, std::string self, Membership* members)
    : prefix_(std::move(prefix)), self_(std::move(self)), members_(members) {}

void MemberMirror::SetAll(const etcdserverpb::RangeResponse& all, int64_t now_ns) {
  std::set<std::string> there;
  for (const etcdserverpb::KeyValue& entry : all.kvs()) {
    absl::StatusOr<Member> member = ParseMember(prefix_, entry.key(), entry.value());
    if (!member.ok()) {
      ++refused_;
      TRYST_LOG(Warning) << member.status().message();
      continue;
    }
    there.insert(member->worker);
    Put(*member);
  }
  std::vector<std::string> gone;
  for (const auto& [worker, member] : known_) {
    if (there.count(worker) == 0) gone.push_back(worker);
  }
  for (const std::string& worker : gone) Delete(worker, now_ns);
  Forget(now_ns);
}

void MemberMirror::OnEvent(const etcdserverpb::Event& event, int64_t now_ns) {
  if (event.type() == etcdserverpb::Event::DELETE) {
    const auto worker = WorkerOfKey(prefix_, event.kv().key());
    if (worker.ok()) Delete(*worker, now_ns);
  } else {
    const auto member = ParseMember(prefix_, event.kv().key(), event.kv().value());
    if (member.ok()) {
      Put(*member);
    } else {
      ++refused_;
      TRYST_LOG(Warning) << member.status().message();
    }
  }
  Forget(now_ns);
}

void MemberMirror::Put(const Member& member) {
  const auto it = known_.find(member.worker);
  if (it == known_.end() && known_.size() >= kMostMembers) {
    ++refused_;
    return;
  }
  lapsed_.erase(member.worker);
  known_[member.worker] = member;
  if (member.worker == self_) return;  // Nothing in etcd overrides what we know of ourselves.
  members_->Set(member.worker, member.address);
  const absl::Status announced = members_->Announce(member);
  if (!announced.ok())
    TRYST_LOG(Warning) << "this worker does not accept " << member.worker
                       << ", which etcd lists: " << announced.message();
}

void MemberMirror::Delete(const std::string& worker, int64_t now_ns) {
  const auto it = known_.find(worker);
  if (it == known_.end()) return;
  if (worker != self_) {
    members_->Leave(worker, it->second.incarnation);
    lapsed_[worker] = now_ns;
  }
  known_.erase(it);
}

bool MemberMirror::Has(const Member& member) const {
  const auto it = known_.find(member.worker);
  return it != known_.end() && it->second.incarnation == member.incarnation;
}

void MemberMirror::Forget(int64_t now_ns) {
  for (auto it = lapsed_.begin(); it != lapsed_.end();) {
    if (now_ns - it->second < kForgetNs && lapsed_.size() <= kMostLapsed) {
      ++it;
      continue;
    }
    members_->Remove(it->first);
    it = lapsed_.erase(it);
  }
}

}  // namespace tryst
