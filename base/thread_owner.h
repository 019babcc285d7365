#ifndef TRYST_BASE_THREAD_OWNER_H_
#define TRYST_BASE_THREAD_OWNER_H_

namespace tryst {

// Which object runs the calling thread, so that who waits for the work of that object can
// tell that it is asked to wait for itself. A thread says so first of all; a thread that
// nobody of ours runs has no owner.
void SetThreadOwner(const void* owner);
// False of null.
bool IsThreadOf(const void* owner);

}  // namespace tryst

#endif  // TRYST_BASE_THREAD_OWNER_H_
