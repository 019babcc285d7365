#ifndef TRYST_BASE_THREAD_OWNER_H_
#define TRYST_BASE_THREAD_OWNER_H_

namespace tryst {

// Notes which object runs the calling thread. A call that waits for that object's work can then see
// that it would wait for its own thread. Each thread of ours calls this first; other threads have
// no owner.
void SetThreadOwner(const void* owner);
// False if `owner` is null.
bool IsThreadOf(const void* owner);

}  // namespace tryst

#endif  // TRYST_BASE_THREAD_OWNER_H_
