#include "server/security/allow_list.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace tryst {
namespace {

// Whether `prefix` is the worker's whole name, or the beginning of it up to a '/'.
bool Names(absl::string_view prefix, absl::string_view worker) {
  return worker == prefix || absl::StartsWith(worker, absl::StrCat(prefix, "/"));
}

// Whether the key's text begins with `prefix`. A prefix that ends in a device's name must end with
// one of the name's components, so that task:1 does not name task:10. Within an edge's name it may
// end anywhere.
bool Begins(absl::string_view key, absl::string_view prefix) {
  if (!absl::StartsWith(key, prefix) || prefix.empty()) return false;
  const auto fields = std::count(prefix.begin(), prefix.end(), ';');
  if ((fields != 0 && fields != 2) || key.size() == prefix.size()) return true;
  const auto ends_part = [](char c) { return c == '/' || c == ';' || c == ':'; };
  return ends_part(prefix.back()) || ends_part(key[prefix.size()]);
}

// A device as TensorFlow 1 wrote it, in the form that keys have.
std::string ModernDevice(absl::string_view prefix) {
  return absl::StrReplaceAll(prefix, {{"/cpu:", "/device:CPU:"},
                                      {"/CPU:", "/device:CPU:"},
                                      {"/gpu:", "/device:GPU:"},
                                      {"/GPU:", "/device:GPU:"}});
}

}  // namespace

absl::StatusOr<AllowList> AllowList::Parse(absl::string_view text) {
  AllowList list;
  for (absl::string_view rule : absl::StrSplit(text, ';', absl::SkipWhitespace())) {
    std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(rule, absl::MaxSplits('=', 1));
    absl::ConsumeSuffix(&parts.first, "/");
    if (!absl::StartsWith(parts.first, "/job:") || !absl::StartsWith(parts.second, "/job:")) {
      return absl::InvalidArgumentError(absl::StrCat(
          "allow should look like /job:CONSUMER=/job:PRODUCER;..., and has '", rule, "'"));
    }
    list.rules_.emplace_back(parts.first, ModernDevice(parts.second));
  }
  return list;
}

absl::Status AllowList::Check(absl::string_view consumer, const TensorKey& key) const {
  if (key.empty() || key.dst().worker != consumer) {
    return absl::PermissionDeniedError(absl::StrCat(
        consumer, " asks for a tensor that the producer sends to another worker: ", key.text()));
  }
  if (rules_.empty()) return absl::OkStatus();
  for (const auto& [who, prefix] : rules_) {
    if (Names(who, consumer) && Begins(key.text(), prefix)) return absl::OkStatus();
  }
  return absl::PermissionDeniedError(absl::StrCat("the producer's setting allow does not let ",
                                                  consumer, " receive ", key.text()));
}

absl::StatusOr<ControlList> ControlList::Parse(absl::string_view text) {
  ControlList list;
  for (absl::string_view worker : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    absl::ConsumeSuffix(&worker, "/");
    if (!absl::StartsWith(worker, "/job:")) {
      return absl::InvalidArgumentError(absl::StrCat(
          "control should look like /job:J,/job:J/replica:0/task:T, and has '", worker, "'"));
    }
    list.workers_.emplace_back(worker);
  }
  return list;
}

absl::Status ControlList::Check(absl::string_view worker) const {
  for (const std::string& allowed : workers_) {
    if (Names(allowed, worker)) return absl::OkStatus();
  }
  return absl::PermissionDeniedError(absl::StrCat(
      worker,
      " may not begin, abort or clean up steps of this worker: its setting control allows only ",
      absl::StrJoin(workers_, ", ")));
}

void GuardedSource::Take(int64_t step_id, const TensorKey& key, const RecvArgs& args, DoneFn done) {
  absl::Status admitted =
      key.empty() ? absl::InvalidArgumentError("the request for a tensor has an empty key")
                  : allow_.Check(key.dst().worker, key);
  if (admitted.ok() && source_ == nullptr) {
    admitted = absl::UnavailableError("the producer has not started yet: try again");
  }
  if (admitted.ok()) return source_->Take(step_id, key, args, std::move(done));
  FailReceive(std::move(admitted), args.executor, std::move(done));
}

}  // namespace tryst
