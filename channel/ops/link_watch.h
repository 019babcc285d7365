#ifndef TRYST_CHANNEL_OPS_LINK_WATCH_H_
#define TRYST_CHANNEL_OPS_LINK_WATCH_H_

#include <cstdint>

#include "channel/poller/member_timer.h"
#include "channel/poller/poller.h"

namespace tryst {

// Finds a peer that is linked and says nothing, by one rule for every kind of link
// (docs/decisions/0072-silent-links.md). While a fetch waits, it checks at the link again and
// again. A check that finds no word asks for a sign. The link is over when the silence has lasted
// for as long as a word of an honest peer may be under way, which the kind of link says.
//
// Where a link loses no word, a new one would bring nothing more, and a process that was stopped
// checks like one that owes the sign. So there the peer is asked by another way whether it is up,
// and its link is over before that time if it answers there and is silent here for as long again.
// Poller thread only.
class LinkWatch {
 public:
  class Owner {
   public:
    // When the peer was last heard over the link, or was first waited for; -1: nobody waits.
    virtual int64_t HeardNs() = 0;
    // How long a word of an honest peer may be under way.
    virtual int64_t MostSilentMs() const = 0;
    // Looks for what the peer has announced and does not bring. `owes`: something is due. False:
    // the link has ended.
    virtual bool CheckDue(bool* owes) = 0;
    // `again`: it was asked, and has said nothing since.
    virtual void AskForSign(bool again) = 0;
    // Asks by another way. The answer goes to NoteUp(), sooner or later.
    virtual void AskIfUp() = 0;
    virtual void OnSilent(int64_t heard_ns) = 0;

   protected:
    ~Owner() = default;
  };

  LinkWatch(Poller* poller, Owner* owner) : poller_(poller), owner_(owner) {}

  // `check_ms`: between two checks; 0: the peer may be silent for ever. `ask_up_ms`: after how long
  // without the sign the peer is asked by another way; 0: never.
  void UseTimes(int64_t check_ms, int64_t ask_up_ms) {
    check_ms_ = check_ms;
    ask_up_ms_ = ask_up_ms;
  }

  // A fetch waits over the link.
  void Watch() {
    if (!timer_.is_set() && check_ms_ > 0) CheckAfter(check_ms_);
  }
  void CheckAfter(int64_t ms) { poller_->SetTimer(&timer_, poller_->now_ns() + ms * 1'000'000); }
  void Stop() {
    poller_->CancelTimer(&timer_);
    heard_ns_ = -1;
    is_asking_ = false;
  }
  // The peer has answered, or not, whether it is up.
  void NoteUp(bool is_up) {
    is_asking_ = false;
    if (is_up && up_ns_ < 0) up_ns_ = poller_->now_ns();
  }

 private:
  void Check();
  bool IsLong(int64_t since_ns) const {
    return ask_up_ms_ > 0 && since_ns >= 0 &&
           poller_->RunningSince(since_ns) >= ask_up_ms_ * 1'000'000;
  }

  Poller* const poller_;
  Owner* const owner_;
  int64_t check_ms_ = 0;
  int64_t ask_up_ms_ = 0;
  int64_t heard_ns_ = -1;   // HeardNs() at the last check.
  int64_t asked_ns_ = -1;   // When it was asked for a sign since then; -1: it was not.
  int64_t up_ns_ = -1;      // When it first said since then that it is up; -1: it did not.
  bool is_asking_ = false;  // Whether it is up.
  MemberTimer<LinkWatch> timer_{this, &LinkWatch::Check};
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_LINK_WATCH_H_
