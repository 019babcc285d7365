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
#include "channel/ops/link_kind.h"
#include "channel/ops/link_watch.h"
#include "channel/ops/peer_silence.h"

namespace tryst {

// The consumer's half of a session: what a producer was asked for, over as many links as that
// takes, of whichever kind. A link may break at any moment. Then what was asked for waits until no
// byte of it can land any more, keeps its slot, and is asked for again over the next link, under
// the same generation and in the same order; what was given up says its CANCEL there; and REPLAYED
// follows. The session ends with the producer's process, or when the producer has given it up.
// Poller thread only.
class FetchSession : public FetchOps, private LinkWatch::Owner {
 public:
  using State = Connector::State;
  using Kinds = std::vector<const FetchKind*>;
  static constexpr int64_t kRenewMs = 1000;
  // `kinds`: of links, the best first, of which there is one at least. `chooser`: null: it goes on
  // by the first. All outlive it.
  FetchSession(Poller* poller, Bootstrap* bootstrap, const FetchOpsOptions& options, Kinds kinds,
               KindChooser* chooser);
  ~FetchSession() override;  // REQUIRES: Drained().

  void Close(absl::Status why) override;
  bool Drained() const override { return FetchOps::Drained() && link_->Gone(); }
  // Opens a link although no fetch waits, to see whether that works (KindChooser::OnUsable), and
  // says so in its hello. It is for a session that never fetches.
  void Probe() override;
  // Goes on by links of that kind. One that is open ends first.
  void MoveTo(size_t kind);
  size_t kind() const { return at_; }  // That the link is of, or the next one.
  // The network has improved: ends the pause before the next attempt.
  void RetryNow() override;
  // Makes the link anew after a pause, by a hello that shows who we are now: while nothing is under
  // way, if there is such a moment within kRenewMs. What was asked for is then asked for again.
  void Renew(int64_t pause_ms);
  std::string Explain() const override;
  void View(PathView* view) const override;
  FetchCounters Counted() const;  // Since links are of this kind.

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
  void AskHeldAnew();

 private:
  // ---- Kinds of links ----
  void UseKind(size_t kind);
  void LeaveKind();
  void GoOnBy(size_t kind);
  void OnKindFailed(bool is_refused, const absl::Status& why);
  void AskAndMove();

  void OnRenewTimer();
  void GiveUp(const absl::Status& why);
  void HandOverAll();
  void SayGoodbye(Connector::AnswerFn on_answer);

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

  const Kinds kinds_;
  KindChooser* const chooser_;  // May be null.
  size_t at_ = 0;               // The kind of the present link, or of the next one,
  size_t next_ = 0;             // and that of the one behind it.
  uint64_t peer_incarnation_ = 0;
  uint64_t session_ = 0;
  bool probing_ = false;
  PeerSilence silence_;       // While there is no link,
  LinkWatch watch_;           // and while there is one.
  FetchOwed owed_;            // Over the present link, or the last.
  bool ask_next_ = false;     // After this pause it asks whether the peer is up.
  bool goodbye_due_ = false;  // It was closed while something was asked for.
  int64_t broken_since_ns_ = 0;
  int64_t renew_by_ns_ = 0;  // If its timer is set.
  MemberTimer<FetchSession> renew_timer_{this, &FetchSession::OnRenewTimer};
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_FETCH_SESSION_H_
