#ifndef TRYST_VERBS_IBV_IBV_STATUS_H_
#define TRYST_VERBS_IBV_IBV_STATUS_H_

#include <infiniband/verbs.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "verbs/nic.h"

// libibverbs reports failure in five ways. They become absl::Status here and nowhere
// else; `call` names the function for the message.
//
//   1 returns a positive errno value    modify, query, post, arm, destroy   FromReturned
//   2 returns null and sets errno       open, alloc, create, register       FromPointer
//   3 returns a negative count          poll                                FromPolled
//   4 returns -1 and sets errno         completion and asynchronous events  FromEventCall
//   5 succeeds, and fails later         the work completion's status        FromWorkStatus
namespace tryst {

// 1. Some drivers return -errno or -1 instead; those are understood, too.
absl::Status FromReturned(int returned, absl::string_view call);

// 2. Pass the call itself as the argument, so that nothing changes errno in between.
template <typename T>
absl::StatusOr<T*> FromPointer(T* returned, absl::string_view call);

// 3. A queue that cannot be polled is lost, and its NIC with it: kUnavailable.
absl::StatusOr<size_t> FromPolled(int returned);

// 4. True: there was an event. False: there is none now (the descriptors do not block).
absl::StatusOr<bool> FromEventCall(int returned, absl::string_view call);

// 5. For verbs/nic.h, and for people: what broke the queue pair.
CompletionStatus FromWorkStatus(ibv_wc_status status);
absl::Status StatusOfWork(ibv_wc_status status, uint32_t vendor_error, uint32_t queue_pair);

// What an errno value of any of them means to a caller.
absl::Status FromErrno(int error, absl::string_view call);

template <typename T>
absl::StatusOr<T*> FromPointer(T* returned, absl::string_view call) {
  if (returned != nullptr) return returned;
  return FromErrno(errno, call);
}

}  // namespace tryst

#endif  // TRYST_VERBS_IBV_IBV_STATUS_H_
