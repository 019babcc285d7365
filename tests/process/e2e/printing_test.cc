// What a hostile worker says reaches the terminal of whoever asks it, and a terminal obeys escape
// codes: each command is shown a worker that has them in everything it says.
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "proto/transport.grpc.pb.h"
#include "tests/process/e2e/process.h"

namespace tryst {
namespace {

constexpr char kLiar[] = "/job:liar/replica:0/task:0";
// Colours, a window's title, a line of its own, and a control character of two bytes in UTF-8.
constexpr char kEvil[] = "evil\nforged: all is well\r\x1b[31m\x1b]0;title\x07\x7f\xc2\x9b";
// A worker's name but for that.
constexpr char kEvilWorker[] = "/job:evil\x1b[31m/replica:0/task:1";

class Liar final : public rpc::TransportService::Service {
 public:
  Liar() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Liar() override { server_->Shutdown(std::chrono::system_clock::now()); }
  std::string at() const { return absl::StrCat(kLiar, "@127.0.0.1:", port_); }

  bool refuses = false;               // Answers with an error whose text is hostile.
  std::vector<std::string> explains;  // Not empty: says this, one after the other, in place of it.

 private:
  using Context = grpc::ServerContext*;
  static grpc::Status Refusal() { return {grpc::StatusCode::INTERNAL, kEvil}; }
  grpc::Status End() const { return refuses ? Refusal() : grpc::Status::OK; }

  grpc::Status Heartbeat(Context, const rpc::HeartbeatRequest*,
                         rpc::HeartbeatResponse* response) override {
    response->mutable_self()->set_worker(kLiar);
    response->mutable_self()->set_address(kEvil);
    response->mutable_self()->set_incarnation(1);
    for (const std::string& worker : {std::string(kEvil), std::string(kEvilWorker)}) {
      rpc::Member* const member = response->add_members();
      member->set_worker(worker);
      member->set_address(kEvil);
      rpc::Member* const up = response->add_members();
      up->set_worker(worker);
      up->set_address(absl::StrCat("127.0.0.1:", port_));
      up->set_incarnation(2);
    }
    response->set_steady_ns(1);
    return grpc::Status::OK;
  }
  grpc::Status Hello(Context, const rpc::HelloRequest*, rpc::HelloResponse*) override {
    return Refusal();
  }
  grpc::Status FetchTensor(
      Context, grpc::ServerReaderWriter<rpc::FetchResponse, rpc::FetchRequest>* stream) override {
    rpc::FetchResponse response;
    response.mutable_header()->set_producer_incarnation(1);
    response.mutable_header()->set_code(13);
    response.mutable_header()->set_message(kEvil);
    stream->Write(response);
    return grpc::Status::OK;
  }
  grpc::Status BeginStep(Context, const rpc::BeginStepRequest*, rpc::StepResponse*) override {
    return Refusal();
  }
  grpc::Status AbortStep(Context, const rpc::AbortStepRequest*, rpc::StepResponse*) override {
    return Refusal();
  }
  grpc::Status CleanupStep(Context, const rpc::CleanupStepRequest*, rpc::StepResponse*) override {
    return Refusal();
  }
  grpc::Status SendSamples(Context, const rpc::SendSamplesRequest*, rpc::StepResponse*) override {
    return Refusal();
  }
  static std::string Said(bool json) {
    return json ? absl::StrCat("{\"paths\":[{\"role\":\"fetch\",\"peer\":\"", kEvil,
                               "\",\"path\":\"", kEvil, "\",\"state\":\"", kEvil,
                               "\"}],\"weights\":[{\"set\":\"", kEvil, "\"}]}\n")
                : absl::StrCat(kEvil, "\n");
  }
  grpc::Status Explain(Context, const rpc::ExplainRequest* request,
                       rpc::TextResponse* response) override {
    response->set_text(said_ < explains.size() ? explains[said_++] : Said(request->json()));
    return End();
  }
  grpc::Status DumpWaiting(Context, const rpc::DumpWaitingRequest* request,
                           rpc::TextResponse* response) override {
    response->set_text(Said(request->json()));
    return End();
  }
  grpc::Status Stats(Context, const rpc::StatsRequest*, rpc::StatsResponse* response) override {
    (*response->mutable_values())[kEvil] = 1;
    return End();
  }
  grpc::Status TraceKey(Context, const rpc::TraceKeyRequest*,
                        rpc::TraceResponse* response) override {
    response->set_worker(kEvil);
    response->set_incarnation(1);
    response->set_steady_ns(1);
    rpc::TraceTrackView* const track = response->add_tracks();
    track->set_peer(kEvil);
    track->set_path(kEvil);
    rpc::TraceOp* const op = response->add_ops();
    op->set_key(kEvil);
    op->set_step_id(1);
    op->set_began_ns(1);
    return End();
  }

  int port_ = 0;
  size_t said_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// `its_own`: the lines are the worker's own answer, which may say anything line by line.
void ExpectHarmless(const std::string& text, bool its_own) {
  for (const char c : text) {
    EXPECT_TRUE(c == '\n' || (c >= 0x20 && c < 0x7f)) << static_cast<int>(c) << " in " << text;
  }
  if (its_own) return;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    EXPECT_FALSE(absl::StartsWith(line, "forged")) << text;
  }
}

class Printing : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(, Printing, testing::Bool(),
                         [](const auto& info) { return info.param ? "Json" : "Text"; });

TEST_P(Printing, NoCommandPrintsWhatATerminalObeys) {
  Liar liar;
  const std::string self = "--job=asks";
  const std::vector<std::vector<std::string>> commands = {
      {"ping", liar.at()},
      {"explain", liar.at()},
      {"waiting", liar.at()},
      {"trace", liar.at()},
      {"top", liar.at(), "--count=1"},
      {"top", absl::StrCat("--join=", liar.at()), "--count=1"},
      {"weights", liar.at()},
      {"stats", liar.at()},
      {"begin", liar.at()},
      {"cleanup", liar.at()},
      {"abort", liar.at(), "why"},
      {"doctor", liar.at()},
      {"bench", liar.at(), self},
      {"recv", "edge", TempFile("never.npy"), absl::StrCat("--from=", liar.at()), self},
      {"recv", "edge", TempFile("never.npy"), absl::StrCat("--from=", liar.at()), self,
       "--protocol=grpc"},
  };
  for (const bool refuses : {false, true}) {
    liar.refuses = refuses;
    for (const std::vector<std::string>& command : commands) {
      std::vector<std::string> args =
          With(command, {"--insecure", "--open_cluster", "--nic=soft", "--timeout=5s"});
      if (GetParam()) args.push_back("--json");
      SCOPED_TRACE(command[0]);
      Process process("server/tryst", args);
      ASSERT_GE(process.Wait(), 0);
      const bool its_own = command[0] == "explain" || command[0] == "waiting";
      ExpectHarmless(process.out(), its_own || GetParam());
      ExpectHarmless(process.err(), false);
      const bool shown = absl::StrContains(absl::StrCat(process.out(), process.err()), "evil");
      if (command[0] != "doctor" && command[0] != "bench") {
        EXPECT_TRUE(shown) << process.out() << process.err();
      }
    }
  }
}

std::string OnePath(const std::string& incarnation, double at_s, int done) {
  return absl::StrCat("{\"incarnation\":\"", incarnation, "\",\"steady_ns\":", at_s * 1e9,
                      ",\"paths\":[{\"role\":\"fetch\",\"peer\":\"p\",\"path\":\"shm\",\"done\":",
                      done, ",\"bytes\":", done * 1e6, ",\"waited_ms\":{\"copy\":", done, "}}]}");
}

// Rates need two queries of the same life of a worker.
TEST(Top, ShowsNoRatesOfTheFirstQueryNorOfTheFirstAfterARestart) {
  Liar worker;
  worker.explains = {OnePath("1", 1, 1000), OnePath("1", 2, 1500), OnePath("2", 3, 9000),
                     OnePath("2", 5, 9200)};
  Process top("server/tryst", {"top", worker.at(), "--insecure", "--open_cluster", "--nic=soft",
                               "--json", "--count=4", "--every=10ms"});
  ASSERT_EQ(top.Wait(), 0) << top.err();
  const std::vector<std::string> tables = absl::StrSplit(top.out(), '\n', absl::SkipEmpty());
  ASSERT_EQ(tables.size(), 4u) << top.out();
  const char* const rates[] = {"0.000", "500.000", "0.000", "100.000"};
  const char* const mostly[] = {"", "copy", "", "copy"};
  for (size_t i = 0; i < tables.size(); ++i) {
    const std::string wanted =
        absl::StrCat("\"operations_per_s\":", rates[i], ",\"megabytes_per_s\":", rates[i], ",");
    EXPECT_TRUE(absl::StrContains(tables[i], wanted)) << tables[i];
    EXPECT_TRUE(absl::StrContains(tables[i], absl::StrCat("\"", mostly[i], "\"}],"))) << tables[i];
  }
}

}  // namespace
}  // namespace tryst
