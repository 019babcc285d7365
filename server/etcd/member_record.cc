#include "server/etcd/member_record.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "channel/trace/json_text.h"
#include "rendezvous/tensor_key.h"

namespace tryst {
namespace {

constexpr size_t kMostValueBytes = 2048;
constexpr size_t kMostAddressBytes = 512;

}  // namespace

std::string MemberKeyPrefix(absl::string_view cluster) {
  return absl::StrCat("/tryst/", cluster, "/");
}

std::string MemberKey(absl::string_view cluster, absl::string_view worker) {
  return absl::StrCat(MemberKeyPrefix(cluster), absl::StripPrefix(worker, "/"));
}

std::string MemberValue(const Member& member) {
  return absl::StrFormat("{\"address\":%s,\"incarnation\":\"%016x\"}", JsonText(member.address),
                         member.incarnation);
}

absl::StatusOr<std::string> WorkerOfKey(absl::string_view prefix, absl::string_view key) {
  absl::string_view rest = key;
  DeviceName name;
  std::string worker;
  if (absl::ConsumePrefix(&rest, prefix)) worker = absl::StrCat("/", rest);
  const std::string cpu = absl::StrCat(worker, "/device:CPU:0");
  if (worker.empty() || !ParseDeviceName(cpu, &name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("etcd's key '", key.substr(0, kMostAddressBytes),
                     "' does not name a worker, and this worker ignores it"));
  }
  return worker;
}

absl::StatusOr<Member> ParseMember(absl::string_view prefix, absl::string_view key,
                                   absl::string_view value) {
  absl::StatusOr<std::string> worker = WorkerOfKey(prefix, key);
  if (!worker.ok()) return worker.status();
  const auto bad = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("etcd's value for the worker ", *worker, " cannot be read"));
  };
  google::protobuf::Struct json;
  if (value.size() > kMostValueBytes ||
      !google::protobuf::util::JsonStringToMessage({value.data(), value.size()}, &json).ok()) {
    return bad();
  }
  Member member;
  member.worker = *std::move(worker);
  for (const auto& [field, content] : json.fields()) {
    if (field == "address") member.address = content.string_value();
    if (field == "incarnation" &&
        !absl::SimpleHexAtoi(content.string_value(), &member.incarnation)) {
      return bad();
    }
  }
  if (member.incarnation == 0 || member.address.empty() ||
      member.address.size() > kMostAddressBytes) {
    return bad();
  }
  return member;
}

std::string EndOfPrefix(std::string prefix) {
  ++prefix.back();
  return prefix;
}

}  // namespace tryst
