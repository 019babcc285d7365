#ifndef TRYST_RENDEZVOUS_ANSWERER_H_
#define TRYST_RENDEZVOUS_ANSWERER_H_

#include "rendezvous/rendezvous.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

// Whether the key's edge is kept for answerers: nothing is sent under it.
inline bool IsAnswered(const TensorKey& key) {
  return !key.edge().empty() && key.edge().front() == '|';
}

// Makes the tensors of some names when peers take them. No send is needed, any number of takes get
// one each, and one that is given back is dropped: who wants it asks again. The names are edges
// that begin with '|', which are kept for answerers. Thread-safe.
class Answerer {
 public:
  virtual ~Answerer() = default;
  // `done` as in rendezvous.h, perhaps in here: this may be a poller's thread, so what takes long
  // is done elsewhere. It heeds args.cancellation where it lets a take wait. args.executor is null
  // or runs `done`.
  virtual void Answer(const TensorKey& key, const RecvArgs& args, DoneFn done) = 0;
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_ANSWERER_H_
