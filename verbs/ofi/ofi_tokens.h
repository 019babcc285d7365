#ifndef TRYST_VERBS_OFI_OFI_TOKENS_H_
#define TRYST_VERBS_OFI_OFI_TOKENS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tryst {

// By what the two ends of a queue pair know each other, and whether the peer has greeted.
class OfiTokens {
 public:
  OfiTokens();

  uint64_t ours() const { return ours_; }
  const uint64_t& peers() const { return peers_; }  // 0: not told yet.
  bool met() const { return met_; }

  void SetPeer(uint64_t token);
  // Whether a greeting's payload is our own token.
  bool AreOurs(const uint8_t* payload, size_t bytes) const;
  // A greeting with our token came from `token`. True when it is the peer's.
  bool OnHello(uint64_t token);

 private:
  static constexpr size_t kMaxHeard = 8;

  uint64_t ours_ = 0;
  uint64_t peers_ = 0;
  bool met_ = false;
  std::vector<uint64_t> heard_;  // Greetings that came before SetPeer().
};

}  // namespace tryst

#endif  // TRYST_VERBS_OFI_OFI_TOKENS_H_
