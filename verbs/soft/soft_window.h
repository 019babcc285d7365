#ifndef TRYST_VERBS_SOFT_SOFT_WINDOW_H_
#define TRYST_VERBS_SOFT_SOFT_WINDOW_H_

#include <cstdint>

#include "verbs/nic.h"
#include "verbs/soft/soft_context.h"

namespace tryst {

// A Window whose key changes when a queue pair binds it.
class SoftWindow final : public Window {
 public:
  explicit SoftWindow(SoftContext* context) : context_(context) {}
  ~SoftWindow() override { context_->regions.UnbindWindow(remote_key_); }
  uint32_t remote_key() const override { return remote_key_; }
  void set_remote_key(uint32_t remote_key) { remote_key_ = remote_key; }

 private:
  SoftContext* const context_;
  uint32_t remote_key_ = 0;
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_WINDOW_H_
