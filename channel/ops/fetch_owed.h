#ifndef TRYST_CHANNEL_OPS_FETCH_OWED_H_
#define TRYST_CHANNEL_OPS_FETCH_OWED_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "channel/poller/poller.h"

namespace tryst {

// What a producer owes while fetches wait for it. It owes a word when it is asked for one; the word
// also says that it has read what it was asked before. Of a tensor that it has announced it owes
// the bytes. It owes no other tensor, because that may not have been sent yet: such a fetch waits
// for as long as its caller lets it.
//
// Time for which this process did not run does not count. Poller thread only.
class FetchOwed {
 public:
  // `limit_ms`: how long a tensor that was announced may stay away; 0: for ever.
  FetchOwed(const Poller* poller, int64_t limit_ms)
      : poller_(poller), limit_ns_(limit_ms * 1'000'000) {}

  // A connection begins.
  void Begin();
  // And it will be over another path, which is in nobody's debt.
  void UsePath() { in_default_ = false; }
  // The producer has said what an honest one says.
  void NoteWord() {
    word_ns_ = poller_->now_ns();
    has_spoken_ = true;
    if (in_default_) Forgive();
  }
  // When it last did; before its first word, when the connection began.
  int64_t word_ns() const { return word_ns_; }
  bool has_spoken() const { return has_spoken_; }

  // Whether a tensor is awaited that it has announced.
  void NoteAwaited(bool is_awaited);
  // Some of a tensor has come, or a failure in its place.
  void NoteBrought() {
    owes_since_ns_ = -1;
    in_default_ = false;
    has_brought_ = true;
  }
  bool has_brought() const { return has_brought_; }  // On this connection.
  // It has answered a question, and brought nothing. How often it did so since the tensor is
  // awaited.
  void NoteAnswer() { ++answers_; }
  uint64_t answers() const { return answers_; }
  // Since when it has brought nothing of a tensor that it has announced; -1: it owes none.
  int64_t owes_since_ns() const { return owes_since_ns_; }
  bool IsLate() const {
    return limit_ns_ > 0 && owes_since_ns_ >= 0 &&
           poller_->RunningSince(owes_since_ns_) >= limit_ns_;
  }

  // The connection ends because the producer was late, or said what none may say and nothing else.
  // Then words alone do not show that the next connection works.
  void NoteDefault() { in_default_ = true; }
  // Whether this connection has shown that it works.
  bool works() const { return has_spoken_ && !in_default_; }

  // Why a connection ends: nothing of a tensor that was announced, and no word.
  absl::Status Late(const std::string& peer, const std::string& path) const;
  absl::Status Silent(const std::string& peer, const std::string& path, int64_t silent_ms) const;

 private:
  void Forgive();

  const Poller* const poller_;
  const int64_t limit_ns_;
  int64_t began_ns_ = 0;
  int64_t word_ns_ = 0;
  int64_t owes_since_ns_ = -1;
  uint64_t answers_ = 0;
  bool has_spoken_ = false;
  bool has_brought_ = false;
  bool in_default_ = false;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_FETCH_OWED_H_
