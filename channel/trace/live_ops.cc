#include "channel/trace/live_ops.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/printable.h"
#include "channel/trace/json_text.h"

namespace tryst {
namespace {

bool IsOlder(const LiveOp& a, const LiveOp& b) { return a.span.began_ns() < b.span.began_ns(); }

double Ms(int64_t since_ns, int64_t now_ns) { return static_cast<double>(now_ns - since_ns) / 1e6; }

}  // namespace

void LiveOps::Add(LiveOp op) {
  if (step_ >= 0 && op.step != step_) return;
  if (ops_.size() == most_) {
    ++left_out_;
    if (most_ == 0 || !IsOlder(op, ops_.front())) return;
    std::pop_heap(ops_.begin(), ops_.end(), IsOlder);
    ops_.pop_back();
  }
  ops_.push_back(std::move(op));
  std::push_heap(ops_.begin(), ops_.end(), IsOlder);
}

std::vector<LiveOp> LiveOps::Take() {
  std::sort_heap(ops_.begin(), ops_.end(), IsOlder);
  return std::exchange(ops_, {});
}

std::string LiveOpsText(const std::vector<LiveOp>& ops, size_t left_out, int64_t now_ns) {
  std::string out;
  for (const LiveOp& op : ops) {
    absl::StrAppendFormat(&out, "step %d: %s %s by %s %.1f ms, waits %.1f ms for %s%s%s%s: %s\n",
                          op.step, op.role == TraceRole::kFetch ? "fetch from" : "serve to",
                          op.peer, op.path, Ms(op.span.began_ns(), now_ns),
                          Ms(op.span.since_ns(), now_ns), WaitsForText(op.span.waits_for()),
                          op.detail.empty() ? "" : " (", Printable(op.detail),
                          op.detail.empty() ? "" : ")", Printable(op.key.text()));
  }
  if (left_out > 0) absl::StrAppend(&out, "and ", left_out, " younger operations\n");
  return out;
}

std::string LiveOpsJson(const std::vector<LiveOp>& ops, int64_t now_ns) {
  std::string out = "[";
  for (const LiveOp& op : ops) {
    absl::StrAppendFormat(
        &out,
        "%s{\"step\":%d,\"role\":\"%s\",\"peer\":%s,\"path\":%s,\"key\":%s,\"ms\":%.3f,"
        "\"waits_for\":\"%s\",\"waits_ms\":%.3f,\"bytes\":%d,\"detail\":%s}",
        out.size() > 1 ? "," : "", op.step, op.role == TraceRole::kFetch ? "fetch" : "serve",
        JsonText(op.peer), JsonText(op.path), JsonText(op.key.text()),
        Ms(op.span.began_ns(), now_ns), WaitsForName(op.span.waits_for()),
        Ms(op.span.since_ns(), now_ns), op.bytes, JsonText(op.detail));
  }
  return out + "]";
}

}  // namespace tryst
