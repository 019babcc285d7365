#ifndef TRYST_TESTS_PROCESS_PAIR_PATH_LISTENER_H_
#define TRYST_TESTS_PROCESS_PAIR_PATH_LISTENER_H_

#include <functional>
#include <iterator>
#include <utility>
#include <vector>

#include "channel/transport.h"
#include "rendezvous/rendezvous.h"

namespace tryst {

// The user of one channel's path: keeps what the channel hands over.
class PathListener final : public PathUser {
 public:
  explicit PathListener(bool has_another) : has_another_(has_another) {}

  bool HasAnother() const override { return has_another_; }
  bool HasForAnySize() const override { return has_another_; }
  void OnRefused() override {
    if (when_refused) when_refused();
  }
  void OnLeft(std::vector<WaitingFetch> fetches) override { Keep(std::move(fetches), &left); }
  void OnUsable() override {
    ++usable;
    if (when_usable) when_usable();
  }
  void OnTooLarge(std::vector<WaitingFetch> fetches) override {
    Keep(std::move(fetches), &too_large);
  }
  void OnNetworkChange() override {}

  // Ends what was handed over.
  void EndAll(const absl::Status& why) {
    for (std::vector<WaitingFetch>* fetches : {&left, &too_large}) {
      for (WaitingFetch& fetch : std::exchange(*fetches, {})) {
        std::move(fetch.done)({why});
      }
    }
  }

  std::vector<WaitingFetch> left;
  std::vector<WaitingFetch> too_large;
  int usable = 0;  // How often the path was said to work.
  std::function<void()> when_refused;
  std::function<void()> when_usable;

 private:
  static void Keep(std::vector<WaitingFetch> fetches, std::vector<WaitingFetch>* kept) {
    kept->insert(kept->end(), std::make_move_iterator(fetches.begin()),
                 std::make_move_iterator(fetches.end()));
  }

  const bool has_another_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_PROCESS_PAIR_PATH_LISTENER_H_
