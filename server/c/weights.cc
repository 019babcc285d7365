// Version 1 of the C interface: weights.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "channel/device/device_engine.h"
#include "channel/trace/json_text.h"
#include "server/c/handles.h"
#include "server/c/operations.h"
#include "server/c/tryst_v1.h"
#include "server/weights/weight_member.h"
#include "server/weights/weight_owner.h"
#include "weights/boxes.h"
#include "weights/fetch_plan.h"
#include "weights/layout.h"

using tryst::c::Give;
using tryst::c::GiveText;
using tryst::c::RefuseNull;
using tryst::c::Text;

struct tryst_cancellation {
  tryst::Cancellation cancellation;
};

// Exactly one of the two pointers is set.
struct tryst_weights {
  std::unique_ptr<tryst::WeightOwner> owner;
  std::unique_ptr<tryst::WeightMember> member;
  tryst_server* server = nullptr;  // The caller's.
  const int forks = tryst::ForkCount();
};

struct tryst_weights_version {
  tryst::SealedVersion version;
};

namespace {

tryst::Patience PatienceOf(int64_t timeout_ms, tryst_cancellation* cancellation) {
  return tryst::Patience(tryst::c::Timeout(timeout_ms),
                         cancellation == nullptr ? nullptr : &cancellation->cancellation);
}

absl::Status OwnerOf(const tryst_weights* weights, tryst::WeightOwner** owner) {
  const absl::Status usable = tryst::c::InTheProcessOf(weights->forks);
  if (!usable.ok()) return usable;
  *owner = weights->owner.get();
  if (*owner != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this handle is a member of the set of weights, and only an owner may make this call: open "
      "the set with role=owner");
}

absl::Status MemberOf(const tryst_weights* weights, tryst::WeightMember** member) {
  const absl::Status usable = tryst::c::InTheProcessOf(weights->forks);
  if (!usable.ok()) return usable;
  *member = weights->member.get();
  if (*member != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this handle is an owner of the set of weights, and only a member may make this call: open "
      "the set with role=member");
}

// What tryst_weights_open() reads, for all roles.
struct Settings {
  std::string role;
  uint32_t rank = 0;
  size_t keep = 2, min_members = 1;
  uint64_t hold_bytes = 0, bytes_per_second = 0;
  bool keeps_knowingly = false, log_in_etcd = false;
  tryst::GroupTimes times;
};

absl::Status ReadSetting(const std::string& text, Settings* settings) {
  const std::pair<std::string, std::string> words = absl::StrSplit(text, absl::MaxSplits('=', 1));
  const auto& [name, value] = words;
  uint64_t number = 0;
  const bool is_number = absl::SimpleAtoi(value, &number);
  if (name == "role" && (value == "owner" || value == "member" || value == "observer")) {
    settings->role = value;
  } else if (name == "on_headless" && (value == "stop" || value == "keep")) {
    settings->keeps_knowingly = value == "keep";
  } else if (name == "decider" && (value == "worker" || value == "etcd")) {
    settings->log_in_etcd = value == "etcd";
  } else if (name == "rank" && is_number && number < tryst::LayoutLimits::kMaxOwners) {
    settings->rank = number;
  } else if (name == "keep" && is_number && number >= 1) {
    settings->keep = number;
  } else if (name == "hold_bytes" && is_number) {
    settings->hold_bytes = number;
  } else if (name == "bytes_per_second" && is_number) {
    settings->bytes_per_second = number;
  } else if (name == "min_members" && is_number && number >= 1) {
    settings->min_members = number;
  } else if (name == "permit_ms" && is_number && number >= 50 && number <= 600'000) {
    settings->times.permit_ns = settings->times.lease_ns = number * 1'000'000;
    settings->times.retry_ns = settings->times.permit_ns / 5;
    settings->times.silent_ns = settings->times.permit_ns * 2;
  } else {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text,
        "\" is not a setting of a set of weights, or has a wrong value. The settings are: "
        "role=owner, role=member or role=observer; rank=NUMBER; keep= and min_members=, numbers "
        "from 1 on; hold_bytes=NUMBER; bytes_per_second=NUMBER; permit_ms=, a number from 50 to "
        "600000; on_headless=stop or "
        "on_headless=keep; "
        "decider=worker or decider=etcd"));
  }
  return absl::OkStatus();
}

tryst::Extents Numbers(const int64_t* numbers, size_t count) {
  return count == 0 ? tryst::Extents() : tryst::Extents(numbers, numbers + count);
}

absl::StatusOr<tryst::TensorLayout> LayoutOf(const tryst_weights_layout& from) {
  tryst::TensorLayout layout;
  layout.name = Text(from.name);
  const auto dtype = tryst::c::CheckedType(from.dtype);
  if (!dtype.ok()) return dtype.status();
  layout.dtype = *dtype;
  if (from.rank > tryst::TensorShape::kMaxRank || from.mesh_rank > tryst::TensorShape::kMaxRank ||
      (from.rank > 0 && from.dims == nullptr) ||
      (from.mesh_rank > 0 && (from.mesh == nullptr || from.placements == nullptr)) ||
      (from.owner_count > 0 && from.owners == nullptr) ||
      (from.box_count > 0 && from.boxes == nullptr)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the layout of \"", layout.name, "\" has too many dimensions, or an array of it is null"));
  }
  auto shape = tryst::TensorShape::Make(Numbers(from.dims, from.rank));
  if (!shape.ok()) return shape.status();
  layout.shape = *shape;
  layout.owners.assign(from.owners, from.owners + from.owner_count);
  layout.mesh = Numbers(from.mesh, from.mesh_rank);
  for (size_t axis = 0; axis < from.mesh_rank; ++axis) {
    layout.placements.push_back({from.placements[axis]});
  }
  for (size_t i = 0; i < from.box_count; ++i) {
    const tryst_weights_box& box = from.boxes[i];
    if (from.rank > 0 && (box.begin == nullptr || box.extent == nullptr)) {
      return absl::InvalidArgumentError(
          absl::StrCat("begin or extent of a box of tensor \"", layout.name, "\" is null"));
    }
    layout.boxes.push_back(
        {box.owner, {Numbers(box.begin, from.rank), Numbers(box.extent, from.rank)}});
  }
  return layout;
}

absl::StatusOr<tryst::WeightMember::Item> ItemOf(const tryst_weights* weights,
                                                 const tryst_weights_item& from) {
  const bool complete = from.name != nullptr && from.tensor != nullptr &&
                        (from.rank == 0 || (from.begin != nullptr && from.extent != nullptr &&
                                            from.strides != nullptr));
  if (!complete || from.rank > tryst::TensorShape::kMaxRank) {
    return absl::InvalidArgumentError(
        "one of the items has a null where a name, a tensor or an array is needed, or has too many "
        "dimensions");
  }
  tryst::WeightMember::Item item;
  item.tensor = from.name;
  item.box = {Numbers(from.begin, from.rank), Numbers(from.extent, from.rank)};
  item.into = from.tensor->tensor;
  item.places = {from.offset, Numbers(from.strides, from.rank)};
  item.has = from.has;
  std::shared_ptr<tryst::DeviceContext> context;
  const absl::Status added = tryst::c::AddOptions(weights->server, from.options, 0, &context);
  if (!added.ok()) return added;
  item.context = std::dynamic_pointer_cast<tryst::GpuContext>(context);
  return item;
}

absl::StatusOr<std::vector<tryst::WeightMember::Item>> ItemsOf(const tryst_weights* weights,
                                                               const tryst_weights_item* items,
                                                               size_t count) {
  if (count > 0 && items == nullptr) return absl::InvalidArgumentError("null was given for items");
  std::vector<tryst::WeightMember::Item> all;
  for (size_t i = 0; i < count; ++i) {
    auto item = ItemOf(weights, items[i]);
    if (!item.ok()) return item.status();
    if (items[i].tensor->shared) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", item->tensor,
                       "\" would be fetched into memory that other holders of that tensor read, "
                       "too: give memory that nobody else uses"));
    }
    all.push_back(*std::move(item));
  }
  return all;
}

}  // namespace

tryst_status* tryst_cancellation_create(tryst_cancellation** cancellation) {
  if (tryst_status* const refused = RefuseNull(cancellation)) return refused;
  *cancellation = new tryst_cancellation;
  return nullptr;
}

void tryst_cancellation_cancel(tryst_cancellation* cancellation) {
  if (cancellation != nullptr) cancellation->cancellation.StartCancel();
}

void tryst_cancellation_free(tryst_cancellation* cancellation) { delete cancellation; }

tryst_status* tryst_weights_open(tryst_server* server, const char* set, const char* const* owners,
                                 size_t owner_count, const char* const* settings, size_t count,
                                 tryst_weights** weights) {
  if (tryst_status* const refused = RefuseNull(server, weights)) return refused;
  *weights = nullptr;
  const absl::Status usable = server->Usable();
  if (!usable.ok()) return Give(usable);
  if ((owner_count > 0 && owners == nullptr) || (count > 0 && settings == nullptr)) {
    return Give(absl::InvalidArgumentError("null was given for the owners or the settings"));
  }
  Settings read;
  for (size_t i = 0; i < count; ++i) {
    const absl::Status status = ReadSetting(Text(settings[i]), &read);
    if (!status.ok()) return Give(status);
  }
  std::vector<std::string> names;
  for (size_t i = 0; i < owner_count; ++i) names.push_back(Text(owners[i]));
  auto made = std::make_unique<tryst_weights>();
  if (read.role == "owner") {
    tryst::WeightOwnerOptions options;
    options.set = Text(set);
    options.owners = std::move(names);
    options.rank = read.rank;
    options.keep = read.keep;
    options.min_members = read.min_members;
    options.log_in_etcd = read.log_in_etcd;
    options.times = read.times;
    auto owner = tryst::WeightOwner::Open(server->server.get(), options);
    if (!owner.ok()) return Give(owner.status());
    made->owner = *std::move(owner);
  } else if (!read.role.empty()) {
    tryst::WeightMemberOptions options;
    options.set = Text(set);
    options.owners = std::move(names);
    options.observes = read.role == "observer";
    options.keeps_knowingly = read.keeps_knowingly;
    options.hold_bytes = read.hold_bytes;
    options.bytes_per_second = read.bytes_per_second;
    options.times = read.times;
    auto member = tryst::WeightMember::Open(server->server.get(), options);
    if (!member.ok()) return Give(member.status());
    made->member = *std::move(member);
  } else {
    return Give(
        absl::InvalidArgumentError("the settings do not say which role this worker has in the set "
                                   "of weights: add role=owner, role=member or role=observer"));
  }
  made->server = server;
  *weights = made.release();
  return nullptr;
}

void tryst_weights_free(tryst_weights* weights) {
  if (weights == nullptr) return;
  // Its thread lives in the parent only.
  if (tryst::c::InTheProcessOf(weights->forks).ok()) delete weights;
}

char* tryst_weights_explain(tryst_weights* weights) {
  if (weights == nullptr) return GiveText("");
  const absl::Status usable = tryst::c::InTheProcessOf(weights->forks);
  if (!usable.ok()) return GiveText(usable.ToString());
  return GiveText(weights->owner != nullptr ? weights->owner->Explain()
                                            : weights->member->Explain());
}

tryst_status* tryst_weights_boxes(const tryst_weights_layout* layout, uint32_t owners,
                                  uint32_t owner, int64_t* numbers, size_t max, size_t* count) {
  if (tryst_status* const refused = RefuseNull(layout, count)) return refused;
  *count = 0;
  const auto read = LayoutOf(*layout);
  if (!read.ok()) return Give(read.status());
  const absl::Status checked = tryst::CheckLayout(*read, owners);
  if (!checked.ok()) return Give(checked);
  size_t written = 0;
  for (const tryst::Box& box : tryst::BoxesOf(*read, owner)) {
    ++*count;
    for (const tryst::Extents* of : {&box.begin, &box.extent}) {
      for (const int64_t number : *of) {
        if (written < max && numbers != nullptr) numbers[written++] = number;
      }
    }
  }
  return nullptr;
}

tryst_status* tryst_weights_declare(tryst_weights* weights, const tryst_weights_layout* layouts,
                                    size_t count) {
  if (tryst_status* const refused = RefuseNull(weights, layouts)) return refused;
  tryst::WeightOwner* owner = nullptr;
  const absl::Status is_owner = OwnerOf(weights, &owner);
  if (!is_owner.ok()) return Give(is_owner);
  std::vector<tryst::TensorLayout> all;
  for (size_t i = 0; i < count; ++i) {
    auto layout = LayoutOf(layouts[i]);
    if (!layout.ok()) return Give(layout.status());
    all.push_back(*std::move(layout));
  }
  return Give(owner->Declare(std::move(all)));
}

namespace {

tryst_status* PublishOrBorrow(tryst_weights* weights, uint64_t number,
                              const tryst_weights_item* item, bool borrow) {
  if (tryst_status* const refused = RefuseNull(weights, item)) return refused;
  tryst::WeightOwner* owner = nullptr;
  const absl::Status is_owner = OwnerOf(weights, &owner);
  if (!is_owner.ok()) return Give(is_owner);
  const auto read = ItemOf(weights, *item);
  if (!read.ok()) return Give(read.status());
  if (borrow) return Give(owner->Borrow(number, read->tensor, read->box, read->into, read->places));
  return Give(
      owner->Publish(number, read->tensor, read->box, read->into, read->places, read->context));
}

}  // namespace

tryst_status* tryst_weights_publish(tryst_weights* weights, uint64_t number,
                                    const tryst_weights_item* item) {
  return PublishOrBorrow(weights, number, item, /*borrow=*/false);
}

tryst_status* tryst_weights_borrow(tryst_weights* weights, uint64_t number,
                                   const tryst_weights_item* item) {
  return PublishOrBorrow(weights, number, item, /*borrow=*/true);
}

tryst_status* tryst_weights_release(tryst_weights* weights, uint64_t number, int32_t how,
                                    int64_t timeout_ms, tryst_cancellation* cancellation) {
  if (tryst_status* const refused = RefuseNull(weights)) return refused;
  tryst::WeightOwner* owner = nullptr;
  const absl::Status is_owner = OwnerOf(weights, &owner);
  if (!is_owner.ok()) return Give(is_owner);
  if (how < TRYST_WEIGHTS_WAIT || how > TRYST_WEIGHTS_DROP) {
    return Give(absl::InvalidArgumentError(
        absl::StrCat("how is ", how, ", and should be TRYST_WEIGHTS_WAIT, _COPY or _DROP")));
  }
  return Give(owner->Release(number, static_cast<tryst::ReleaseHow>(how),
                             PatienceOf(timeout_ms, cancellation)));
}

tryst_status* tryst_weights_seal(tryst_weights* weights, uint64_t number, const char* label,
                                 int64_t timeout_ms, tryst_cancellation* cancellation) {
  if (tryst_status* const refused = RefuseNull(weights)) return refused;
  tryst::WeightOwner* owner = nullptr;
  const absl::Status is_owner = OwnerOf(weights, &owner);
  if (!is_owner.ok()) return Give(is_owner);
  return Give(owner->Seal(number, Text(label), PatienceOf(timeout_ms, cancellation)).status());
}

size_t tryst_weights_members(tryst_weights* weights) {
  tryst::WeightOwner* owner = nullptr;
  return weights != nullptr && OwnerOf(weights, &owner).ok() ? owner->members() : 0;
}

void tryst_weights_drop(tryst_weights* weights, uint64_t number) {
  tryst::WeightOwner* owner = nullptr;
  if (weights != nullptr && OwnerOf(weights, &owner).ok()) owner->Drop(number);
}

tryst_status* tryst_weights_activate(tryst_weights* weights, uint64_t number, int32_t mode,
                                     int64_t timeout_ms, tryst_cancellation* cancellation) {
  if (tryst_status* const refused = RefuseNull(weights)) return refused;
  tryst::WeightOwner* owner = nullptr;
  const absl::Status is_owner = OwnerOf(weights, &owner);
  if (!is_owner.ok()) return Give(is_owner);
  if (mode != TRYST_WEIGHTS_ROLLING && mode != TRYST_WEIGHTS_BARRIER) {
    return Give(absl::InvalidArgumentError(absl::StrCat(
        "mode is ", mode, ", and should be TRYST_WEIGHTS_ROLLING or TRYST_WEIGHTS_BARRIER")));
  }
  return Give(owner->Activate(
      number,
      mode == TRYST_WEIGHTS_BARRIER ? tryst::ActivateMode::kBarrier : tryst::ActivateMode::kRolling,
      PatienceOf(timeout_ms, cancellation)));
}

tryst_status* tryst_weights_find(tryst_weights* weights, int32_t how, uint64_t number,
                                 int64_t timeout_ms, tryst_cancellation* cancellation,
                                 tryst_weights_version** version) {
  if (tryst_status* const refused = RefuseNull(weights, version)) return refused;
  *version = nullptr;
  tryst::WeightMember* member = nullptr;
  const absl::Status is_member = MemberOf(weights, &member);
  if (!is_member.ok()) return Give(is_member);
  const tryst::Patience patience = PatienceOf(timeout_ms, cancellation);
  absl::StatusOr<tryst::SealedVersion> found = absl::InvalidArgumentError(absl::StrCat(
      "how is ", how,
      ", and should be one of the TRYST_WEIGHTS_... ways to find a version (tryst_v1.h)"));
  if (how == TRYST_WEIGHTS_NUMBER) found = member->Find(number, patience);
  if (how == TRYST_WEIGHTS_NEWER) found = member->Newer(number, patience);
  if (how == TRYST_WEIGHTS_ACTIVE) found = member->Active(patience);
  if (!found.ok()) return Give(found.status());
  *version = new tryst_weights_version{*std::move(found)};
  return nullptr;
}

tryst_status* tryst_weights_describe(tryst_weights* weights, const tryst_weights_version* version,
                                     int64_t timeout_ms, tryst_cancellation* cancellation,
                                     char** json) {
  if (tryst_status* const refused = RefuseNull(weights, version, json)) return refused;
  *json = nullptr;
  tryst::WeightMember* member = nullptr;
  const absl::Status is_member = MemberOf(weights, &member);
  if (!is_member.ok()) return Give(is_member);
  const auto layouts = member->Layouts(version->version, PatienceOf(timeout_ms, cancellation));
  if (!layouts.ok()) return Give(layouts.status());
  std::string text =
      absl::StrCat("{\"number\":", version->version.name.number,
                   ",\"label\":", tryst::JsonText(version->version.label), ",\"root\":\"",
                   version->version.root.ToString(), "\",\"tensors\":[");
  const char* comma = "";
  for (const tryst::TensorLayout& layout : (*layouts)->tensors) {
    absl::StrAppend(&text, comma, "{\"name\":", tryst::JsonText(layout.name), ",\"dtype\":\"",
                    tryst::DTypeName(layout.dtype), "\",\"shape\":[");
    for (int i = 0; i < layout.shape.rank(); ++i) {
      absl::StrAppend(&text, i == 0 ? "" : ",", layout.shape.dim(i));
    }
    absl::StrAppend(&text, "]}");
    comma = ",";
  }
  *json = GiveText(text + "]}");
  return nullptr;
}

void tryst_weights_version_free(tryst_weights_version* version) { delete version; }

tryst_status* tryst_weights_fetch(tryst_weights* weights, const tryst_weights_version* version,
                                  const tryst_weights_item* items, size_t count, int64_t timeout_ms,
                                  tryst_cancellation* cancellation) {
  if (tryst_status* const refused = RefuseNull(weights, version)) return refused;
  tryst::WeightMember* member = nullptr;
  const absl::Status is_member = MemberOf(weights, &member);
  if (!is_member.ok()) return Give(is_member);
  const auto read = ItemsOf(weights, items, count);
  if (!read.ok()) return Give(read.status());
  return Give(member->Fetch(version->version, *read, PatienceOf(timeout_ms, cancellation)));
}

tryst_status* tryst_weights_stage(tryst_weights* weights, uint64_t number,
                                  const tryst_weights_item* items, size_t count, int64_t timeout_ms,
                                  tryst_cancellation* cancellation) {
  if (tryst_status* const refused = RefuseNull(weights)) return refused;
  tryst::WeightMember* member = nullptr;
  const absl::Status is_member = MemberOf(weights, &member);
  if (!is_member.ok()) return Give(is_member);
  const auto read = ItemsOf(weights, items, count);
  if (!read.ok()) return Give(read.status());
  return Give(member->Stage(number, *read, PatienceOf(timeout_ms, cancellation)));
}

tryst_status* tryst_weights_next_event(tryst_weights* weights, int64_t timeout_ms,
                                       tryst_cancellation* cancellation, int32_t* kind,
                                       uint64_t* number) {
  if (tryst_status* const refused = RefuseNull(weights, kind, number)) return refused;
  tryst::WeightMember* member = nullptr;
  const absl::Status is_member = MemberOf(weights, &member);
  if (!is_member.ok()) return Give(is_member);
  const auto event = member->NextEvent(PatienceOf(timeout_ms, cancellation));
  if (!event.ok()) return Give(event.status());
  static_assert(
      static_cast<int>(tryst::WeightEvent::Kind::kSealed) == TRYST_WEIGHTS_SEALED &&
          static_cast<int>(tryst::WeightEvent::Kind::kActive) == TRYST_WEIGHTS_ACTIVATED &&
          static_cast<int>(tryst::WeightEvent::Kind::kHeadless) == TRYST_WEIGHTS_HEADLESS,
      "the same numbers");
  *kind = static_cast<int32_t>(event->kind);
  *number = event->number;
  return nullptr;
}

tryst_status* tryst_weights_answer(tryst_weights* weights, uint64_t number, int32_t what) {
  if (tryst_status* const refused = RefuseNull(weights)) return refused;
  tryst::WeightMember* member = nullptr;
  const absl::Status is_member = MemberOf(weights, &member);
  if (!is_member.ok()) return Give(is_member);
  switch (what) {
    case TRYST_WEIGHTS_STAGED:
      return Give(member->Vote(number, absl::OkStatus()));
    case TRYST_WEIGHTS_NOT_STAGED:
      return Give(member->Vote(
          number, absl::AbortedError("the program of this member could not stage the version")));
    case TRYST_WEIGHTS_HELD:
      return Give(member->Held(number));
    case TRYST_WEIGHTS_SWITCHED:
      return Give(member->Switched(number));
    default:
      return Give(absl::InvalidArgumentError(
          absl::StrCat("what is ", what,
                       ", and should be one of the answers TRYST_WEIGHTS_STAGED, NOT_STAGED, HELD "
                       "and SWITCHED")));
  }
}

int tryst_weights_serve(const tryst_weights* weights, uint64_t* number) {
  if (weights == nullptr || number == nullptr) return 0;
  *number = 0;
  tryst::WeightMember* member = nullptr;
  if (!MemberOf(weights, &member).ok()) return 0;
  const tryst::Serving serving = member->Serve();
  *number = serving.number;
  return serving.number == 0 ? 0 : serving.confirmed ? 1 : 2;
}
