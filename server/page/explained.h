#ifndef TRYST_SERVER_PAGE_EXPLAINED_H_
#define TRYST_SERVER_PAGE_EXPLAINED_H_

#include <google/protobuf/struct.pb.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/members/member.h"

namespace tryst {

struct JobEdge;
struct JobStep;

// Parses what Insight::PathsJson() of another worker, perhaps of another release, has printed.
double JsonNumber(const google::protobuf::Struct& object, const char* name);
std::string JsonString(const google::protobuf::Struct& object, const char* name);
std::string JsonQuoted(absl::string_view text);

struct ExplainedPath {
  bool fetches = false;
  std::string peer, path, state, why;
  bool in_use = false;
  bool failing = false;  // Workers of 0.2.0 and before do not say it, and count as fine.
  double done = 0, failed = 0, bytes = 0, under_way = 0, p99_ms = 0;
  std::map<std::string, double> waited_ms;
};
std::vector<ExplainedPath> ExplainedPaths(const google::protobuf::Struct& document);
// Members that have been heard from.
std::vector<Member> ExplainedMembers(const google::protobuf::Struct& document);
std::vector<MemberChange> ExplainedChanges(const google::protobuf::Struct& document);
// What it says of its sets of weights, as a JSON array; empty: it has none open.
std::string ExplainedWeights(const google::protobuf::Struct& document);

// The page's document. Names of workers are written once, and then replaced by numbers: with 300
// workers, names would be most of it.
class JobDocument {
 public:
  explicit JobDocument(int64_t now_ns) : now_ns_(now_ns) {}
  void AddWorker(const std::string& worker, const std::string& address, int64_t heard_ns,
                 double up_ms, const std::string& error);
  void AddEdge(const std::string& consumer, const JobEdge& edge);
  void AddStep(const std::string& worker, const JobStep& step);
  void AddWeights(const std::string& worker, const std::string& views);
  void AddChange(const MemberChange& change);
  std::string Take() &&;

 private:
  size_t NumberOf(const std::string& worker);

  const int64_t now_ns_;
  std::map<std::string, size_t> numbers_;
  std::vector<std::string> names_;
  std::string workers_, edges_, steps_, weights_, changes_;
};

}  // namespace tryst

#endif  // TRYST_SERVER_PAGE_EXPLAINED_H_
