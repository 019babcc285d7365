// An owner or a member of the set of known_weights.h, for tests.
//
//   weights_worker owner RANK OWNERS PROTOCOL SEED|- VERSIONS
//   weights_worker member TASK OWNERS PROTOCOL SEED VERSIONS
//
// An owner prints "serving WORKER at ADDRESS", publishes and seals versions 1 to VERSIONS, prints
// "sealed N" after each, and stays until it is ended. A member follows the versions as they are
// sealed, fetches all tensors in several shapes, checks each element, and ends with 0 after the
// last version.

#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/server.h"
#include "server/weights/weight_member.h"
#include "server/weights/weight_owner.h"
#include "tests/weights/known_weights.h"
#include "weights/boxes.h"

namespace tryst {
namespace {

constexpr char kSet[] = "policy";
constexpr absl::Duration kPatience = absl::Seconds(60);

struct Words {
  std::string role, protocol, seed;
  int task = 0;
  uint32_t owners = 0;
  uint64_t versions = 0;
};

int Fail(const std::string& what, const absl::Status& why) {
  fprintf(stderr, "weights_worker: %s: %s\n", what.c_str(), why.ToString().c_str());
  return 1;
}

std::string OwnerName(uint32_t rank) { return absl::StrCat("/job:owner/replica:0/task:", rank); }

std::vector<std::string> OwnerNames(uint32_t owners) {
  std::vector<std::string> names;
  for (uint32_t rank = 0; rank < owners; ++rank) names.push_back(OwnerName(rank));
  return names;
}

absl::StatusOr<std::unique_ptr<Server>> Start(const Words& words) {
  ServerConfig config;
  config.cluster = "weights";
  config.job = words.role;
  config.task = words.task;
  config.protocol = words.protocol == "grpc" ? "grpc" : "grpc+verbs";
  config.nic = "soft";
  config.shm = words.protocol == "shm" ? "on" : "off";
  config.insecure = true;
  config.listen = "127.0.0.1:0";
  config.open_cluster = true;
  if (words.seed != "-") config.join = words.seed;
  auto server = ServerBuilder().SetEnvironment({}).Build(config);
  if (!server.ok()) return server.status();
  const absl::Status started = (*server)->Start();
  if (!started.ok()) return started;
  printf("serving %s at %s\n", (*server)->worker().c_str(), (*server)->address().c_str());
  fflush(stdout);
  return server;
}

absl::Status Publish(WeightOwner* owner, const Words& words, uint64_t number) {
  for (const TensorLayout& layout : KnownLayouts(words.owners)) {
    for (const Box& box : BoxesOf(layout, words.task)) {
      const Tensor bytes =
          layout.name == "cast" ? KnownFloats(layout, number, box) : KnownBox(layout, number, box);
      const absl::Status published =
          owner->Publish(number, layout.name, box, bytes, Dense(box.extent));
      if (!published.ok()) return published;
      memset(bytes.mutable_data(), 0, bytes.bytes());  // The owner's memory is its own again.
    }
  }
  return absl::OkStatus();
}

int BeOwner(Server* server, const Words& words) {
  WeightOwnerOptions options;
  options.set = kSet;
  options.owners = OwnerNames(words.owners);
  options.rank = words.task;
  options.keep = words.versions;
  auto owner = WeightOwner::Open(server, options);
  if (!owner.ok()) return Fail("open", owner.status());
  const absl::Status declared = (*owner)->Declare(KnownLayouts(words.owners));
  if (!declared.ok()) return Fail("declare", declared);
  for (uint64_t number = 1; number <= words.versions; ++number) {
    const absl::Status published = Publish(owner->get(), words, number);
    if (!published.ok()) return Fail("publish", published);
    const auto sealed = (*owner)->Seal(number, absl::StrCat("step ", number), kPatience);
    if (!sealed.ok()) return Fail("seal", sealed.status());
    printf("sealed %d %s\n", static_cast<int>(number), sealed->root.ToString().c_str());
    fflush(stdout);
  }
  for (;;) absl::SleepFor(absl::Seconds(1));
}

// Where a box goes: dense, transposed, or as every other element of each row.
Strides PlacesFor(int how, const Box& box, int64_t* elements) {
  Strides places = Dense(box.extent);
  *elements = box.elements();
  if (how == 1 && box.rank() == 2) {
    places.steps = {1, std::max<int64_t>(box.extent[0], 1)};
  } else if (how == 2) {
    for (int64_t& step : places.steps) step *= 2;
    places.offset = 1;
    *elements = 2 * *elements + 1;
  }
  return places;
}

absl::Status FetchAndCheck(WeightMember* member, const SealedVersion& version, uint32_t owners,
                           std::mt19937_64* random) {
  const std::vector<TensorLayout> layouts = KnownLayouts(owners);
  std::vector<WeightMember::Item> items;
  std::vector<const TensorLayout*> of;
  for (int how = 0; how < 6; ++how) {
    for (const TensorLayout& layout : layouts) {
      Box box = Box::Whole(layout.shape);
      for (int dim = 0; how >= 3 && dim < box.rank(); ++dim) {
        box.begin[dim] = (*random)() % (layout.shape.dim(dim) + 1);
        box.extent[dim] = (*random)() % (layout.shape.dim(dim) - box.begin[dim] + 1);
      }
      int64_t elements = 0;
      const Strides places = PlacesFor(how % 3, box, &elements);
      auto into = Tensor::Allocate(layout.dtype, *TensorShape::Make({elements}));
      if (!into.ok()) return into.status();
      memset(into->mutable_data(), kUntouched, into->bytes());
      items.push_back({layout.name, box, *into, places});
      of.push_back(&layout);
    }
  }
  const absl::Status fetched = member->Fetch(version, items, kPatience);
  if (!fetched.ok()) return fetched;
  for (size_t i = 0; i < items.size(); ++i) {
    const absl::Status right =
        CheckKnown(*of[i], version.name.number, items[i].box, items[i].into, items[i].places);
    if (!right.ok()) return right;
  }
  return absl::OkStatus();
}

int BeMember(Server* server, const Words& words) {
  WeightMemberOptions options;
  options.set = kSet;
  options.owners = OwnerNames(words.owners);
  options.observes = true;
  auto member = WeightMember::Open(server, options);
  if (!member.ok()) return Fail("open", member.status());
  std::mt19937_64 random(4500070 + words.task);
  uint64_t last = 0;
  while (last < words.versions) {
    const auto version = (*member)->Newer(last, kPatience);
    if (absl::IsUnavailable(version.status())) {  // The owner has yet to open the set.
      absl::SleepFor(absl::Milliseconds(20));
      continue;
    }
    if (!version.ok()) return Fail("newer", version.status());
    last = version->name.number;
    if (version->label != absl::StrCat("step ", last)) return Fail("label", absl::OkStatus());
    const absl::Status fetched = FetchAndCheck(member->get(), *version, words.owners, &random);
    if (!fetched.ok()) return Fail("fetch", fetched);
    printf("fetched %d %s\n", static_cast<int>(last), version->root.ToString().c_str());
    fflush(stdout);
  }
  return 0;
}

int Run(const std::vector<std::string>& args) {
  Words words;
  if (args.size() != 6 || !absl::SimpleAtoi(args[1], &words.task) ||
      !absl::SimpleAtoi(args[2], &words.owners) || !absl::SimpleAtoi(args[5], &words.versions)) {
    fprintf(stderr, "usage: weights_worker owner|member TASK OWNERS PROTOCOL SEED|- VERSIONS\n");
    return 2;
  }
  words.role = args[0];
  words.protocol = args[3];
  words.seed = args[4];
  auto server = Start(words);
  if (!server.ok()) return Fail("start", server.status());
  return words.role == "owner" ? BeOwner(server->get(), words) : BeMember(server->get(), words);
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) { return tryst::Run({argv + 1, argv + argc}); }
