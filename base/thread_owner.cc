#include "base/thread_owner.h"

namespace tryst {
namespace {

thread_local const void* thread_owner = nullptr;

}  // namespace

void SetThreadOwner(const void* owner) { thread_owner = owner; }

bool IsThreadOf(const void* owner) { return owner != nullptr && thread_owner == owner; }

}  // namespace tryst
