#include "verbs/completion_policy.h"

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

// Every failed completion breaks its queue pair, so there is one way to recover, and an operation
// that cannot be replayed gets one code: try again later. Only the causes differ.
constexpr char kRecover[] = "drain, reconnect under a new epoch, replay what has not landed";
constexpr char kRecoverOurs[] = "the same; seen twice, it is a bug of ours";

constexpr CompletionPolicy kPolicies[] = {
    {CompletionStatus::kOk, absl::StatusCode::kOk, ErrorScope::kOperation,
     "the work is done; of a write: the bytes are at the peer's NIC",
     "give its budget back and go on"},
    {CompletionStatus::kRetryExceeded, absl::StatusCode::kUnavailable, ErrorScope::kChannel,
     "the peer's NIC does not answer: process dead, link down, address changed", kRecover},
    {CompletionStatus::kReceiverNotReady, absl::StatusCode::kUnavailable, ErrorScope::kChannel,
     "the peer posted no receive in time, although slots are credits: it hangs or is overloaded",
     kRecover},
    {CompletionStatus::kResponseTimeout, absl::StatusCode::kUnavailable, ErrorScope::kChannel,
     "a response did not come in time", kRecover},
    {CompletionStatus::kRemoteAborted, absl::StatusCode::kUnavailable, ErrorScope::kChannel,
     "the peer's NIC gave the operation up", kRecover},
    {CompletionStatus::kRemoteOperation, absl::StatusCode::kUnavailable, ErrorScope::kChannel,
     "the peer's NIC could not carry the operation out: its queue pair broke", kRecover},
    {CompletionStatus::kRemoteAccess, absl::StatusCode::kUnavailable, ErrorScope::kChannel,
     "the peer's key does not allow it (any more): it took the memory back, or is another "
     "incarnation",
     kRecover},
    {CompletionStatus::kGeneral, absl::StatusCode::kUnavailable, ErrorScope::kChannel,
     "the NIC says no more; the vendor error may", kRecover},
    {CompletionStatus::kFlushed, absl::StatusCode::kUnavailable, ErrorScope::kChannel,
     "the queue pair broke before the work had ended; its bytes may or may not have landed",
     "the same; the cause is what came before it, if anything did"},
    {CompletionStatus::kFatal, absl::StatusCode::kUnavailable, ErrorScope::kNic,
     "the NIC failed and lost everything that it held",
     "the same, over the next usable path: the lost NIC takes no new connection"},
    {CompletionStatus::kBadResponse, absl::StatusCode::kUnavailable, ErrorScope::kChannel,
     "an answer that fits no request", kRecover},
    {CompletionStatus::kLocalAccess, absl::StatusCode::kUnavailable, ErrorScope::kChannel,
     "the peer wrote where our memory does not allow it; nothing changed there", kRecover},
    {CompletionStatus::kRemoteInvalidRequest, absl::StatusCode::kUnavailable, ErrorScope::kChannel,
     "the peer's NIC could not read our request as one: too long, or a kind that it does not take",
     kRecover},
    {CompletionStatus::kLocalLength, absl::StatusCode::kUnavailable, ErrorScope::kChannel,
     "more than the receive, or a message, can hold", kRecoverOurs},
    {CompletionStatus::kLocalOperation, absl::StatusCode::kUnavailable, ErrorScope::kChannel,
     "our own NIC found the work inconsistent", kRecoverOurs},
    {CompletionStatus::kLocalProtection, absl::StatusCode::kUnavailable, ErrorScope::kChannel,
     "an entry lies outside its region, or the region is gone", kRecoverOurs},
};
static_assert(sizeof(kPolicies) / sizeof(kPolicies[0]) == kCompletionStatusCount,
              "a status without a policy");

}  // namespace

const CompletionPolicy& PolicyOf(CompletionStatus status) {
  for (const CompletionPolicy& policy : kPolicies) {
    if (policy.status == status) return policy;
  }
  // No NIC of ours makes this number.
  return PolicyOf(CompletionStatus::kGeneral);
}

absl::Status CompletionError(const Completion& completion, absl::string_view what) {
  if (completion.status == CompletionStatus::kOk) return absl::OkStatus();
  const CompletionPolicy& policy = PolicyOf(completion.status);
  std::string text = absl::StrCat(what, ": ", CompletionStatusName(completion.status), " (",
                                  policy.meaning, "), queue pair ", completion.queue_pair);
  if (completion.vendor_error != 0) {
    absl::StrAppend(&text, ", vendor error 0x", absl::Hex(completion.vendor_error));
  }
  return WithScope(absl::Status(policy.code, text), policy.scope);
}

std::string CompletionPolicyTable() {
  std::string text =
      "| completion | status | broken | what it means | what we do |\n"
      "| --- | --- | --- | --- | --- |\n";
  for (const CompletionPolicy& policy : kPolicies) {
    const bool ok = policy.status == CompletionStatus::kOk;
    absl::StrAppend(&text, "| ", CompletionStatusName(policy.status), " | ",
                    ok ? "OK" : absl::StatusCodeToString(policy.code), " | ",
                    ok ? "" : ErrorScopeName(policy.scope), " | ", policy.meaning, " | ",
                    policy.action, " |\n");
  }
  return text;
}

}  // namespace tryst
