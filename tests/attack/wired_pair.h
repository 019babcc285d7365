#ifndef TRYST_TESTS_ATTACK_WIRED_PAIR_H_
#define TRYST_TESTS_ATTACK_WIRED_PAIR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/server.h"
#include "tests/attack/wire_tap.h"
#include "tests/doubles/server/test_certificates.h"

namespace tryst {

// Two workers as if on two hosts, and somebody on the wire between them.
class WiredPair {
 public:
  struct Way {
    bool certificates = false;  // Else a token.
    bool over_grpc = false;     // Else the soft NIC.
    std::string encrypt = "auto";
    std::string name() const;
  };
  static std::vector<Way> All();  // Those in which nothing may be read or changed.

  // Files go to `folder`.
  WiredPair(const Way& way, const std::string& folder);
  ~WiredPair();

  const std::string& trouble() const { return trouble_; }  // Empty: both serve.
  // A tensor of 1 MiB of markers for the worker. Not OK: it did not come.
  absl::Status Fetch();
  int wrong() const { return wrong_; }  // Tensors that came with other bytes than were sent.
  std::string Explain() const;

  uint64_t markers() const;
  uint64_t hellos() const;
  uint64_t bytes() const;
  // Makes `times` edits of what the tensors travel by, and fetches meanwhile. False: there was
  // nothing to edit. `trouble` says if an edited connection went on.
  bool Edit(WireEdit edit, int times);

 private:
  ServerConfig Config(const std::string& job, const std::string& here, int port, int nic) const;
  std::unique_ptr<Server> Start(const ServerConfig& config);
  bool EditOnce(WireEdit edit);

  const Way way_;
  const std::string folder_;
  TestAuthority authority_;
  std::string trouble_;
  int ports_[4];
  std::unique_ptr<WireTap> taps_[2];
  std::unique_ptr<Server> ps_;
  std::unique_ptr<Server> worker_;
  std::shared_ptr<Rendezvous> sends_;
  std::shared_ptr<Rendezvous> receives_;
  const std::string text_ = Markers(65536);
  int next_ = 0;
  int wrong_ = 0;
};

}  // namespace tryst

#endif  // TRYST_TESTS_ATTACK_WIRED_PAIR_H_
