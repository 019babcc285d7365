#ifndef TRYST_CHANNEL_OPS_FETCH_LINK_H_
#define TRYST_CHANNEL_OPS_FETCH_LINK_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "channel/bootstrap.h"
#include "channel/ops/fetch_ask.h"
#include "channel/ops/fetch_op.h"
#include "channel/ops/fetch_words.h"
#include "channel/trace/path_view.h"

namespace tryst {

// What connects a FetchSession to its producer: one kind of link, with one link at a time. It
// brings the session's words to the producer and says where bytes go; what the producer says and
// brings it tells the session, which destroys it when it goes on by another kind. Poller thread
// only.
class FetchLink {
 public:
  virtual ~FetchLink() = default;  // REQUIRES: Gone(); no ask of it is out.

  virtual FetchWords* words() = 0;  // Constant.

  // ---- A link, from its hello to its end ----
  // One is wanted: what `hello` says of it. An error: none can be made now.
  virtual absl::Status Begin(Hello* hello) = 0;
  // The answer to that hello. The session's OnLinkOpen() is called in it, or later. An error: the
  // attempt fails.
  virtual absl::Status UseAnswer(const Hello& answer) = 0;
  // No link comes of the attempt. True: it is to be made once more, at once.
  virtual bool EndAttempt(const absl::Status& why) = 0;
  // Ends the link, if it is open; the session goes on.
  virtual void Break(const absl::Status& why) = 0;
  // The session is closed. True: there is no link any more; else it calls the session's DrainAsks()
  // and GoOn() when there is none.
  virtual bool Close(const absl::Status& why) = 0;
  // There is no link, and no byte can come over one.
  virtual bool Gone() const { return true; }
  // The parameters of a hello that says farewell.
  virtual std::string FarewellParameters(const std::string& farewell) const { return farewell; }
  // Behind the state of the connection: what else is to be known of it.
  virtual std::string Explain() const = 0;
  virtual void View(PathView* /*view*/) const {}

  // ---- Silence (LinkWatch) ----
  // Notes what the peer has said since the last check, if the link does not tell of each word.
  virtual void HearWords() {}
  virtual int64_t MostSilentMs() const = 0;
  virtual void AskForSign(bool again) = 0;
  // Notes what the peer has announced (FetchOwed::NoteAwaited). An error: it is late, and the link
  // is to end.
  virtual absl::Status Overdue() = 0;

  // ---- Asks, and the memory of their tensors ----
  virtual FetchAsk* MakeAsk() = 0;  // Makes one, which lasts until DropAsks().
  virtual void DropAsks() = 0;      // Destroys all of them: none is out.
  virtual void DropKeys() {}  // All keys were forgotten: nothing is out, and was not for long.
  // Whether a destination in the memory of a device can be filled.
  virtual absl::Status MayFillDevice(int ordinal) const = 0;
  // What was asked for ahead of this fetch, or null. It gets a fetch now.
  virtual FetchAsk* Foreseen(const FetchKey&, int64_t) { return nullptr; }
  virtual void OnWaits(FetchOp*) = 0;  // It is in a line: calls the session's AwaitPeer().
  virtual void OnNoSlot() {}           // A fetch waits for a slot, and none is free.
  virtual size_t asked_ahead() const { return 0; }  // Asks for which no fetch has come yet.
  // Whether the peer may write the memory of the caller in front.
  virtual bool MayBeWritten(const FetchAsk&) const { return false; }
  virtual void DropMemory(FetchAsk*) {}
  // Whether what the peer was asked for can go to `next` in place of the fetch in front.
  virtual bool MayPass(const FetchAsk& ask, const FetchOp& next) const = 0;
  virtual void OnEndAhead(FetchAsk*) {}            // It was asked for ahead, and is given up.
  virtual void OnLeaves(FetchAsk*, FetchState) {}  // Until then it was in that state.
  // The link is over: nothing is asked for ahead any more.
  virtual void DropAhead(const absl::Status& /*why*/) {}
  // Its link is over: what it noted of that link is forgotten.
  virtual void OnLinkOver(FetchAsk*) {}
  // Behind "not received in time"; empty: the session's own reason.
  virtual std::string WhyLate(const FetchOp&) const { return ""; }
  virtual uint64_t BytesOf(const FetchAsk&) const { return 0; }  // As far as is known.
  virtual uint64_t messages() const { return 0; }  // Written over this link and not counted yet.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_FETCH_LINK_H_
