#ifndef TRYST_CHANNEL_OPS_SERVE_LINK_H_
#define TRYST_CHANNEL_OPS_SERVE_LINK_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "channel/bootstrap.h"
#include "channel/ops/serve_slots.h"
#include "channel/ops/serve_table.h"
#include "channel/trace/path_view.h"

namespace tryst {

// What connects a ServeSession to its consumer: one kind of link, with one link at a time. It
// carries the answers; what the consumer says it tells the session's slots. Poller thread only.
class ServeLink : public ServeWire {
 public:
  virtual bool Exists() const = 0;  // Or is about to open or to be gone.
  // Answers a hello for a link: adds its parameters to `answer`. The session's OnLinkOpen() is
  // called in it, or later. REQUIRES: there is none.
  virtual absl::Status Open(const Hello& hello, Hello* answer) = 0;
  // It ends; the session's OnLinkGone() follows, when no work of it is under way any more.
  virtual void Break(const absl::Status& why) = 0;
  // Hears what is written down of the last link that was open: what was lent over it is lent no
  // longer, and slots whose answers the consumer has accepted are free. Returns how the others end:
  // kNotAccepted if it accepts nothing more, or kLeft.
  virtual ServeEvent EndFormer() { return ServeEvent::kLeft; }
  // Hears what the consumer has said up to now, which may end the session.
  virtual void HearLast() {}
  // The consumer will not come.
  virtual bool Abandoned() const { return false; }
  virtual void View(PathView* view) const = 0;  // Its health, state and note.
  virtual std::string Explain() const { return ""; }
  virtual uint64_t messages() const { return 0; }  // Written over this link and not counted yet.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_SERVE_LINK_H_
