#ifndef TRYST_CHANNEL_OPS_FETCH_SESSION_H_
#define TRYST_CHANNEL_OPS_FETCH_SESSION_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "channel/bootstrap.h"
#include "channel/ops/fetch_ops.h"
#include "channel/ops/fetch_owed.h"
#include "channel/ops/link_watch.h"
#include "channel/ops/peer_silence.h"

namespace tryst {

// The consumer's half of a session: what a producer was asked for, over as many links as that
// takes. A link may break at any moment. Then what was asked for waits until no byte of it can land
// any more, keeps its slot, and is asked for again over the next link, under the same generation
// and in the same order; what was given up says its CANCEL there; and REPLAYED follows. The session
// ends with the producer's process, when the producer has given it up, or with a farewell: then the
// fetches go on by another path. Poller thread only.
class FetchSession : public FetchOps, private LinkWatch::Owner {
 public:
  using State = Connector::State;
  using MakeLink = absl::FunctionRef<std::unique_ptr<FetchLink>(FetchSession* session)>;
  FetchSession(Poller* poller, Bootstrap* bootstrap, const FetchOpsOptions& options, MakeLink make);
  ~FetchSession() override;  // REQUIRES: Drained().

  void Close(absl::Status why) override;
  bool Drained() const override { return FetchOps::Drained() && link_->Gone(); }
  // Tries the path, unless that is under way.
  void Probe() override;
  // The network has improved: ends the pause before the next attempt.
  void RetryNow() override;
  std::string Explain() const override;
  void View(PathView* view) const override;
  bool OwesEnd(int64_t step_id, const TensorKey& key) const override;
  bool OwesAnyEnd() const override;
  FetchCounters Counted() const;  // With those of the present link.

  // ---- What happens to a link: for FetchLink ----
  Connector* connector() { return &connector_; }
  FetchOwed* owed() { return &owed_; }
  FetchLink* link() const { return link_.get(); }
  uint64_t session() const { return session_; }                    // The peer's memory of us.
  uint64_t peer_incarnation() const { return peer_incarnation_; }  // 0: the peer never answered.
  bool is_probing() const { return probing_; }  // It connects only to see whether the path works.
  size_t live_asks() const { return asks_.live(); }
  size_t waiting() const { return live_asks() - link_->asked_ahead(); }
  // The peer has answered the hello. Another incarnation, or another session, ends what was asked.
  void MeetPeer(uint64_t incarnation, uint64_t session);
  // A session has so many slots, as long as it has asked for something. False: it has others.
  bool UseSlots(size_t slots);
  void OnLinkOpen();
  // A fetch waits. `is_first`: no other did. False: there is no link yet.
  bool AwaitPeer(bool is_first) {
    if (is_first) silence_.NoteWaits();
    if (open()) {
      watch_.Watch();
      return true;
    }
    silence_.Watch();
    if (connector_.state() == State::kIdle) Connect();
    return false;
  }
  // An ask waits for the peer's last word alone.
  void AwaitLastWord() {
    if (waiting() == 1) silence_.NoteWaits();
    if (open()) watch_.Watch();
  }
  // When the peer was last heard over the link, or was first waited for.
  int64_t LastHeardNs() const { return std::max(owed_.word_ns(), silence_.waiting_since_ns()); }
  void OnWord();      // The peer was heard over the link.
  void OnAnswer();    // It has answered a question, and brought nothing.
  void NoteUsable();  // The path has shown that it works.
  // It is late with what it has announced, and the link is to end.
  absl::Status NoteLate();
  void FailAttempt(const absl::Status& why);
  // The link is over. What was asked over it waits until the link has drained: until no byte that
  // was sent over it can land any more.
  void OnLinkBroken(const absl::Status& why);
  void DrainAsks();
  void GoOn();  // There is no link any more: makes the next one, if it is needed.
  // The producer knows that the session is over. EndIdle(): with its link, which nobody needs.
  void EndSession() { session_ = 0; }
  void EndIdle();
  // The life that was asked is over, or knows nothing of us. What `goes_on` is asked for anew: its
  // fetch had heard of the next life before this channel did. Call it without a link.
  void EndAsked(const absl::Status& why, absl::FunctionRef<bool(const FetchAsk&)> goes_on);
  // Whether its key names another life than the one that was met last.
  bool IsForAnother(const FetchAsk& ask) const;
  void EndFetchesOf(uint64_t incarnation, const absl::Status& why);
  void TakeOut(FetchAsk* ask, std::vector<WaitingFetch>* taken) { FetchOps::TakeOut(ask, taken); }

 protected:
  // ---- A link, from its hello to its end ----
  virtual void Connect();
  void Replay();  // All that was asked before is said again.
  void BreakAsks();
  // Whether anything waits for the peer.
  bool Waits() const { return waiting() > 0; }
  void OnPeerLost();  // It was silent for the patience.
  void OnConnectTimer() override;

  // ---- The end of a session ----
  void OnClosed();
  // Nobody will answer the cancels. Call it without a link.
  void ForgetLeaving();
  // It is asked for anew, as the first of those in line. REQUIRES: the peer has nothing of it.
  void AskAnew(FetchAsk* ask);

  uint64_t peer_incarnation_ = 0;
  uint64_t session_ = 0;
  bool probing_ = false;
  PeerSilence silence_;  // While there is no link,
  LinkWatch watch_;      // and while there is one.
  FetchOwed owed_;       // Over the present link, or the last.

 private:
  // LinkWatch::Owner.
  int64_t HeardNs() override;
  int64_t MostSilentMs() const override { return link_->MostSilentMs(); }
  bool CheckDue(bool* owes) override;
  void AskForSign(bool again) override { link_->AskForSign(again); }
  void AskIfUp() override;
  void OnSilent(int64_t heard_ns) override;

  void OnHelloAnswer(absl::StatusOr<Hello> answer);
  void GoIdle();
  void RetryLater(const absl::Status& why);
  void EndQueuedOf(uint64_t incarnation, const absl::Status& why);
  void Leave();
  void SayFarewell(Connector::AnswerFn on_answer, int64_t most_ms);
  void OnFarewellAnswer(absl::StatusOr<Hello> answer);

  bool leave_next_ = false;   // After this pause it says farewell, and not hello.
  bool goodbye_due_ = false;  // It was closed while something was asked for.
  absl::Status refusal_;      // Not OK: it leaves because the peer has turned the path down.
  int64_t broken_since_ns_ = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_FETCH_SESSION_H_
