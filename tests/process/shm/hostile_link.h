#ifndef TRYST_TESTS_PROCESS_SHM_HOSTILE_LINK_H_
#define TRYST_TESTS_PROCESS_SHM_HOSTILE_LINK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "channel/arena/shared_memory.h"
#include "channel/bootstrap.h"
#include "channel/shm/local_socket.h"
#include "channel/shm/wire.h"

namespace tryst {

// Keeps the hellos of a consumer until a HostileLink answers them.
class KeptHellos final : public Bootstrap {
 public:
  void Exchange(const std::string&, const Hello& hello, Deadline, HelloDone done) override {
    if (answer != nullptr) std::move(answer)(absl::AbortedError("another hello has come"));
    asked = hello;
    answer = std::move(done);
  }
  Hello asked;
  HelloDone answer;
};

// The link is small, so that little input reaches its ends.
shm_wire::LinkSizes SmallLinkSizes();

// The producer's side of a link over shared memory, played by hand.
struct HostileLink {
  std::unique_ptr<LocalSocket> socket;  // Null: there is no link.
  SharedMemory* memory = nullptr;
  shm_wire::LinkView view;
  uint32_t next = 0;
  uint64_t session = 1;                         // That it says it has.
  bool lends = false;                           // It says where its memory can be read.
  shm_wire::LinkSizes says = SmallLinkSizes();  // That the memory has, as it says.

  // Answers the hello of a waiting consumer, in the name of `producer`. `turn` lets the consumer
  // work.
  template <typename Turn>
  void Open(KeptHellos* hellos, LocalSocket* door, const std::string& door_name,
            const std::string& producer, uint64_t incarnation, const SharedMemory& segment,
            Turn turn) {
    if (hellos->answer == nullptr) return;
    Invite(hellos, door_name, producer, incarnation, session);
    turn();
    socket = door->Accept();
    if (socket == nullptr) return;  // The connecting side has closed meanwhile.
    Welcome();
    for (int i = 0; i < 3; ++i) turn();
    Lend(segment);
  }
  // Writes the next cell of the reply ring; its sequence is set here.
  void Reply(shm_wire::ReplyCell cell);

  // The first step of Open().
  static void Invite(KeptHellos* hellos, const std::string& door_name, const std::string& producer,
                     uint64_t incarnation, uint64_t session = 1);

 private:
  void Welcome();
  void Lend(const SharedMemory& segment);  // For references to point into.
};

}  // namespace tryst

#endif  // TRYST_TESTS_PROCESS_SHM_HOSTILE_LINK_H_
