#include "channel/trace/path_view.h"

namespace tryst {

absl::string_view PathHealthName(PathHealth health) {
  switch (health) {
    case PathHealth::kIdle:
      return "idle";
    case PathHealth::kOpening:
      return "opening";
    case PathHealth::kWorking:
      return "working";
    case PathHealth::kFailing:
      return "failing";
  }
  return "";
}

}  // namespace tryst
