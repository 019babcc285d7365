#ifndef TRYST_TESTS_PROCESS_PAIR_PATH_LISTENER_H_
#define TRYST_TESTS_PROCESS_PAIR_PATH_LISTENER_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "channel/ops/link_kind.h"
#include "rendezvous/rendezvous.h"

namespace tryst {

// What chooses for a session with one kind of link: keeps what the session gives up.
class PathListener final : public KindChooser {
 public:
  size_t OnFailed(size_t kind, bool is_refused, const std::string&) override {
    ++(is_refused ? refused : failed);
    if (when_failed) when_failed();
    return gives_up ? kNone : kind;
  }
  void OnGivenUp(std::vector<WaitingFetch> fetches) override {
    for (WaitingFetch& fetch : fetches) given_up.push_back(std::move(fetch));
  }
  void OnUsable() override {
    ++usable;
    if (when_usable) when_usable();
  }

  // Ends what was handed over.
  void EndAll(const absl::Status& why) {
    for (WaitingFetch& fetch : std::exchange(given_up, {})) std::move(fetch.done)({why});
  }

  bool gives_up = false;  // There is another channel.
  int refused = 0;
  int failed = 0;  // How often it was to go on by another kind, and is not.
  std::vector<WaitingFetch> given_up;
  int usable = 0;  // How often the path was said to work.
  std::function<void()> when_failed;
  std::function<void()> when_usable;
};

}  // namespace tryst

#endif  // TRYST_TESTS_PROCESS_PAIR_PATH_LISTENER_H_
