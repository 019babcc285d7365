#ifndef TRYST_CHANNEL_OPS_FETCH_SESSION_H_
#define TRYST_CHANNEL_OPS_FETCH_SESSION_H_

#include <cstdint>
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
  void Close(absl::Status why) override;
  // Tries the path, unless that is under way.
  void Probe() override;
  // The network has improved: ends the pause before the next attempt.
  void RetryNow() override;

 protected:
  using State = Connector::State;
  // `check_ms` and `ask_up_ms`: as LinkWatch has them.
  FetchSession(Poller* poller, Bootstrap* bootstrap, const FetchOpsOptions& options,
               FetchCounts* counts, int64_t check_ms, int64_t ask_up_ms);

  // ---- What a transport has of it ----
  // A link is wanted: what `hello` says of it. An error: none can be made now.
  virtual absl::Status BeginLink(Hello* hello) = 0;
  // The answer to that hello. OnLinkOpen() is called in it, or later. An error: the attempt fails.
  virtual absl::Status UseAnswer(const Hello& answer) = 0;
  // No link comes of the attempt. True: it is to be made once more, at once.
  virtual bool EndAttempt(const absl::Status& why) = 0;
  // Ends the link, which is open; the session goes on.
  virtual void BreakLink(const absl::Status& why) = 0;
  // It is closed. True: there is no link any more; else OnClosed() is called when there is none.
  virtual bool CloseLink() = 0;
  // The parameters of a hello that says farewell.
  virtual std::string FarewellParameters(const std::string& farewell) const { return farewell; }
  // Notes what the peer has said since the last check, if the link does not tell of each word.
  virtual void HearWords() {}
  // Whether anything waits for the peer.
  virtual bool Waits() const { return asks_.live() > 0; }
  // Notes what the peer has announced (FetchOwed::NoteAwaited). An error: it is late, and the link
  // is to end.
  virtual absl::Status Overdue() = 0;
  // Its link is over: what it noted of that link is forgotten.
  virtual void OnLinkOver(FetchAsk* ask) = 0;
  // It was given up to go on by another path, and the peer has nothing of it any more.
  virtual void MoveAway(FetchAsk*) {}

  // ---- A link, from its hello to its end ----
  virtual void Connect();
  // The peer has answered the hello. Another incarnation, or another session, ends what was asked.
  void MeetPeer(uint64_t incarnation, uint64_t session);
  void OnLinkOpen();
  void Replay();  // All that was asked before is said again.
  void BreakAsks();
  // The link has drained: no byte that was sent over it can land any more.
  void DrainAsks();
  void GoOn();  // There is no link any more: makes the next one, if it is needed.
  void FailAttempt(const absl::Status& why);
  void NoteUsable();  // The path has shown that it works.
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
  void OnWord();  // The peer was heard over the link.
  // It is late with what it has announced, and the link is to end for that.
  absl::Status NoteLate();
  void OnPeerLost();  // It was silent for the patience.
  void OnConnectTimer() override;

  // ---- The end of a session ----
  void OnClosed();
  // The life that was asked is over, or knows nothing of us. What `goes_on` is asked for anew: its
  // fetch had heard of the next life before this channel did. Call it without a link.
  void EndAsked(const absl::Status& why, absl::FunctionRef<bool(const FetchAsk&)> goes_on);
  // Nobody will answer the cancels. Call it without a link.
  void ForgetLeaving();
  // It is asked for anew, as the first of those in line. REQUIRES: the peer has nothing of it.
  void AskAnew(FetchAsk* ask);
  // Whether its key names another life than the one that was met last.
  bool IsForAnother(const FetchAsk& ask) const;

  uint64_t peer_incarnation_ = 0;  // 0: the peer never answered.
  uint64_t session_ = 0;           // The peer's memory of us.
  bool probing_ = false;           // It connects only to see whether the path works.
  PeerSilence silence_;            // While there is no link,
  LinkWatch watch_;                // and while there is one.
  FetchOwed owed_;                 // Over the present link, or the last.

 private:
  // LinkWatch::Owner, but for what the transport says.
  int64_t HeardNs() override;
  bool CheckDue(bool* owes) override;
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
