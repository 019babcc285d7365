#include "verbs/ofi/ofi_tokens.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>

namespace tryst {
namespace {

uint64_t RandomToken() {
  uint64_t token = 0;
  while (token == 0) {
    if (getrandom(&token, sizeof(token), 0) != sizeof(token)) token = 0;
  }
  return token;
}

}  // namespace

OfiTokens::OfiTokens() : ours_(RandomToken()) {}

void OfiTokens::SetPeer(uint64_t token) {
  peers_ = token;
  met_ = std::find(heard_.begin(), heard_.end(), token) != heard_.end();
  heard_.clear();
}

bool OfiTokens::AreOurs(const uint8_t* payload, size_t bytes) const {
  return bytes == sizeof(ours_) && memcmp(payload, &ours_, sizeof(ours_)) == 0;
}

bool OfiTokens::OnHello(uint64_t token) {
  if (peers_ == 0) {
    // From whom we are not told yet. One of these is our peer.
    if (heard_.size() == kMaxHeard) heard_.erase(heard_.begin());
    heard_.push_back(token);
    return false;
  }
  if (token != peers_) return false;
  met_ = true;
  return true;
}

}  // namespace tryst
