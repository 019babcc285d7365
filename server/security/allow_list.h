#ifndef TRYST_SERVER_SECURITY_ALLOW_LIST_H_
#define TRYST_SERVER_SECURITY_ALLOW_LIST_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rendezvous/tensor_key.h"
#include "rendezvous/tensor_source.h"

namespace tryst {

// Which consumers may take which keys. Constant after construction.
class AllowList {
 public:
  // "/job:worker=/job:ps/replica:0;/job:eval/replica:0/task:0=/job:ps": each rule gives a
  // consumer's name, or its beginning up to a '/', and the beginning of the keys that it may take.
  // With an empty text every consumer may take the tensors that are addressed to it.
  // kInvalidArgument: the text does not parse.
  static absl::StatusOr<AllowList> Parse(absl::string_view text);

  // kPermissionDenied: the key is addressed to another consumer, or no rule allows it.
  absl::Status Check(absl::string_view consumer, const TensorKey& key) const;

 private:
  std::vector<std::pair<std::string, std::string>> rules_;
};

// Which other workers may begin, abort and clean up this worker's steps. Constant after
// construction.
class ControlList {
 public:
  // "/job:chief,/job:ops/replica:0/task:0": the names of workers, or their beginnings up to a '/'.
  // kInvalidArgument: the text does not parse.
  static absl::StatusOr<ControlList> Parse(absl::string_view text);

  bool empty() const { return workers_.empty(); }
  // kPermissionDenied: the list does not name `worker`. REQUIRES: the list is not empty.
  absl::Status Check(absl::string_view worker) const;

 private:
  std::vector<std::string> workers_;
};

// A source behind an allow list. It judges by the consumer that the key names. A path that knows
// which worker asks checks that the two are the same. Until Set() is called, every take fails with
// kUnavailable.
class GuardedSource final : public TensorSource {
 public:
  explicit GuardedSource(AllowList allow) : allow_(std::move(allow)) {}
  // Call it before the first take.
  void Set(TensorSource* source) { source_ = source; }
  const AllowList& allow() const { return allow_; }

  void Take(int64_t step_id, const TensorKey& key, const RecvArgs& args, DoneFn done) override;
  bool TakeHere(int64_t step_id, TensorKey* key, Place* place, Received* taken) override {
    return source_->TakeHere(step_id, key, place, taken);
  }
  bool MayTake(const TensorKey& key) const override {
    return source_ != nullptr && allow_.Check(key.dst().worker, key).ok() && source_->MayTake(key);
  }
  void GiveBack(int64_t step_id, const TensorKey& key, Received taken) override {
    // A tensor comes back only after a take that Check() allowed.
    source_->GiveBack(step_id, key, std::move(taken));
  }

 private:
  const AllowList allow_;
  TensorSource* source_ = nullptr;
};

}  // namespace tryst

#endif  // TRYST_SERVER_SECURITY_ALLOW_LIST_H_
