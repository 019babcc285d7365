#ifndef TRYST_SERVER_WEIGHTS_LEADER_LINK_H_
#define TRYST_SERVER_WEIGHTS_LEADER_LINK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "rendezvous/cancellation.h"
#include "server/server.h"
#include "server/weights/leading.h"
#include "server/weights/patience.h"
#include "server/weights/weight_calls.h"
#include "weights/questions.h"

namespace tryst {

// Turns the protocol of one owner or member on a thread of its own: carries its questions to the
// set's leader, brings the answers, and calls back when it is time to. What is lost on the way is
// not asked for again; the next question makes it good. Whoever does not lead, or does not answer,
// is left for the next one that may lead.
class LeaderLink {
 public:
  // So many of the owners may lead, the first ones, where the log outlives them.
  static constexpr size_t kMostLeaders = 3;
  static std::vector<std::string> LeadersOf(const std::vector<std::string>& owners);
  struct Heard {
    std::vector<Answer> answers;
    bool ask_soon = false;  // The leader had something to tell, and nobody listened.
  };
  // Called on the link's thread alone. Returns when to be called again, by BootClock.
  using TurnFn = std::function<int64_t(const Heard& heard, std::vector<Question>* questions)>;
  struct Parts {
    Server* server;  // It outlives the link.
    std::string set;
    std::vector<std::string> leaders;  // Workers that may lead.
    uint64_t incarnation;              // The owner has it, or the member.
    std::shared_ptr<Leading> own;      // This worker may lead, and is turned here; or null.
    int64_t patience_ns;               // How long an answer is waited for.
    TurnFn turn;
  };
  explicit LeaderLink(Parts parts);
  ~LeaderLink();
  void Stop();  // No turn runs any more. Not from two threads.

  void Wake();               // The next turn is now.
  void Hear(Answer answer);  // The leader in this process says it.
  // That the leader has not answered the last question, and why; empty: it has.
  std::string Note() const;

 private:
  class Shared;
  void Run();
  void Send(const Question& question);
  void Listen();
  bool IsOwn(size_t leader) const;

  const Parts parts_;
  const std::shared_ptr<Shared> shared_;
  Cancellation cancellation_;
  std::unique_ptr<HangingCancellation> listening_;  // On the link's thread alone,
  size_t listened_to_ = 0;                          // as is whom it listens to.
  WeightCalls calls_;
  std::thread thread_;  // The last one: it uses the others.
};

}  // namespace tryst

#endif  // TRYST_SERVER_WEIGHTS_LEADER_LINK_H_
