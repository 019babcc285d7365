#include "rendezvous/waiting.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/printable.h"

namespace tryst {
namespace {

absl::string_view KindName(WaitingItem::Kind kind) {
  switch (kind) {
    case WaitingItem::Kind::kSend:
      return "send";
    case WaitingItem::Kind::kReceive:
      return "receive";
  }
  return "?";
}

// The worker that has to act next: the consumer for a send, the producer for a receive.
absl::string_view WaitsFor(const WaitingItem& item) {
  if (item.kind == WaitingItem::Kind::kSend) return item.key.dst_device();
  return item.key.src_device().empty() ? item.key.dst_device() : item.key.src_device();
}

bool IsOlder(const WaitingItem& a, const WaitingItem& b) { return a.since_ns < b.since_ns; }

double MillisecondsSince(int64_t since_ns, int64_t now_ns) { return (now_ns - since_ns) / 1e6; }

// Edge names may have any bytes, which JSON has to escape.
std::string JsonString(absl::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) {
      absl::StrAppendFormat(&out, "\\u%04x", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace

void WaitingItems::DropYoungest() {
  std::pop_heap(items_.begin(), items_.end(), IsOlder);
  items_.pop_back();
}

void WaitingItems::Put(WaitingItem item) {
  items_.push_back(std::move(item));
  std::push_heap(items_.begin(), items_.end(), IsOlder);
}

std::vector<WaitingItem> WaitingItems::Take() {
  std::sort_heap(items_.begin(), items_.end(), IsOlder);
  return std::exchange(items_, {});
}

std::string WaitingText(WaitingItems items, int64_t now_ns) {
  std::string text;
  for (const WaitingItem& item : items.Take()) {
    absl::StrAppendFormat(&text, "step %d: %s of %s waits %.3f ms for %s", item.step_id,
                          KindName(item.kind), Printable(item.key.text()),
                          MillisecondsSince(item.since_ns, now_ns), WaitsFor(item));
    if (item.kind == WaitingItem::Kind::kSend) {
      absl::StrAppend(&text, item.is_dead ? " (dead)" : absl::StrCat(" (", item.bytes, " bytes)"));
    }
    text += '\n';
  }
  if (items.left_out() > 0) {
    absl::StrAppend(&text, "and ", items.left_out(), " younger sends and receives\n");
  }
  return text;
}

std::string WaitingJson(WaitingItems items, int64_t now_ns) {
  std::string json = "{\"waiting\":[";
  const char* comma = "";
  for (const WaitingItem& item : items.Take()) {
    absl::StrAppend(&json, comma, "{\"step\":", item.step_id, ",\"kind\":\"", KindName(item.kind),
                    "\",\"key\":", JsonString(item.key.text()),
                    ",\"waits_for\":", JsonString(WaitsFor(item)));
    absl::StrAppendFormat(&json, ",\"ms\":%.3f,\"dead\":%s,\"bytes\":%d}",
                          MillisecondsSince(item.since_ns, now_ns), item.is_dead ? "true" : "false",
                          item.bytes);
    comma = ",";
  }
  return absl::StrCat(json, "],\"waiting_left_out\":", items.left_out(), "}");
}

}  // namespace tryst
