#include "weights/chain.h"

#include <algorithm>
#include <set>

#include "base/little_endian.h"

namespace tryst {

std::string EncodeReferral(const Referral& referral) {
  std::vector<Digest> digests;
  if (referral.digest.has_value()) digests.push_back(*referral.digest);
  std::string bytes(sizeof(uint64_t), '\0');
  StoreLittle(reinterpret_cast<uint8_t*>(bytes.data()), referral.holder.incarnation);
  bytes.push_back(static_cast<char>(digests.size()));
  return bytes + EncodeDigests(digests) + referral.holder.worker;
}

absl::StatusOr<Referral> DecodeReferral(absl::string_view bytes) {
  constexpr size_t kHead = sizeof(uint64_t) + 1;
  const size_t digests = bytes.size() < kHead ? 2 : static_cast<uint8_t>(bytes[kHead - 1]);
  const size_t name = kHead + digests * Digest::kBytes;
  if (digests > 1 || bytes.size() <= name || bytes.size() > name + kMaxWorkerBytes) {
    return absl::InvalidArgumentError(
        "the owner of weights named a member that has them in a way that this one does not read: "
        "run the same release on both");
  }
  Referral referral;
  referral.holder.incarnation =
      LoadLittle<uint64_t>(reinterpret_cast<const uint8_t*>(bytes.data()));
  if (digests == 1)
    referral.digest = DecodeDigests(bytes.substr(kHead, Digest::kBytes), 1)->front();
  referral.holder.worker = std::string(bytes.substr(name));
  return referral;
}

PartChain::Version& PartChain::VersionOf(const WeightVersion& version) {
  const auto found = versions_.find(version.number);
  if (found != versions_.end() && found->second.birth != version.birth) Drop(found);
  Version& its = versions_[version.number];
  its.birth = version.birth;
  return its;
}

const PartChain::Part* PartChain::FindPart(const PartName& name) const {
  const auto version = versions_.find(name.version.number);
  if (version == versions_.end() || version->second.birth != name.version.birth) return nullptr;
  const auto part = version->second.parts.find({name.tensor, name.box});
  return part == version->second.parts.end() ? nullptr : &part->second;
}

std::optional<Holder> PartChain::Next(const PartName& name, const Holder& asker,
                                      bool may_be_sent_on) {
  const bool holds = asker.incarnation != 0;
  if (!holds && FindPart(name) == nullptr) return std::nullopt;
  Version& version = VersionOf(name.version);
  const auto known = version.numbers.find({asker.worker, asker.incarnation});
  const auto part = version.parts.find({name.tensor, name.box});
  std::vector<Link> none;
  std::vector<Link>& links = part == version.parts.end() ? none : part->second.links;
  const auto before = std::find_if(links.begin(), links.end(), [&](const Link& link) {
    return known != version.numbers.end() && link.asker == known->second;
  });
  if (before != links.end()) {
    if (before->sent_to != kNobody) links[before->sent_to].holds = false;
    before->sent_to = kNobody;
    return std::nullopt;
  }
  uint32_t to = kNobody;
  if (may_be_sent_on) {
    // The newest of those with the fewest followers, so that the bytes go from one to the next.
    for (uint32_t at = links.size(); at-- > 0;) {
      if (!links[at].holds) continue;
      if (to == kNobody || links[at].followers < links[to].followers) to = at;
      if (links[to].followers == 0) break;
    }
  }
  const size_t bytes = kLinkBytes + (part == version.parts.end() ? kPartBytes : 0) +
                       (known == version.numbers.end() ? kAskerBytes : 0);
  if (bytes > max_bytes_ - bytes_ || (to == kNobody && !holds)) return std::nullopt;
  bytes_ += bytes;
  version.bytes += bytes;
  ++links_;
  const auto number =
      version.numbers.try_emplace({asker.worker, asker.incarnation}, version.askers.size());
  if (number.second) version.askers.push_back(asker);
  std::vector<Link>& now = version.parts[{name.tensor, name.box}].links;
  now.push_back({number.first->second, to, 0, holds});
  if (to == kNobody) return std::nullopt;
  ++now[to].followers;
  return version.askers[now[to].asker];
}

std::optional<Digest> PartChain::FindDigest(const PartName& name) const {
  const Part* const part = FindPart(name);
  return part == nullptr ? std::nullopt : part->digest;
}

void PartChain::KeepDigest(const PartName& name, const Digest& digest) {
  if (FindPart(name) == nullptr) return;
  versions_[name.version.number].parts[{name.tensor, name.box}].digest = digest;
}

std::vector<Holder> PartChain::HoldersOf(const WeightVersion& name) const {
  std::vector<Holder> holders;
  const auto version = versions_.find(name.number);
  if (version == versions_.end() || version->second.birth != name.birth) return holders;
  const std::vector<Holder>& askers = version->second.askers;
  std::set<absl::string_view> seen;  // Another life of the same worker asked later.
  for (auto asker = askers.rbegin(); asker != askers.rend(); ++asker) {
    if (holders.size() == kMaxHolders) break;
    if (seen.insert(asker->worker).second && asker->incarnation != 0) holders.push_back(*asker);
  }
  return holders;
}

void PartChain::Drop(std::map<uint64_t, Version>::iterator version) {
  for (const auto& part : version->second.parts) links_ -= part.second.links.size();
  bytes_ -= version->second.bytes;
  versions_.erase(version);
}

void PartChain::Forget(const WeightVersion& version) {
  const auto found = versions_.find(version.number);
  if (found != versions_.end() && found->second.birth == version.birth) Drop(found);
}

}  // namespace tryst
