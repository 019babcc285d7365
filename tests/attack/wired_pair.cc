#include "tests/attack/wired_pair.h"

#include <sys/stat.h>

#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/process/e2e/free_port.h"

namespace tryst {
namespace {

constexpr char kPsName[] = "/job:ps/replica:0/task:0";
constexpr char kWorkerName[] = "/job:worker/replica:0/task:0";
constexpr char kListen[] = "127.0.0.1";
// Loopback addresses that nobody else listens on.
constexpr char kPsHere[] = "127.77.0.1";
constexpr char kWorkerHere[] = "127.77.0.2";

}  // namespace

std::string WiredPair::Way::name() const {
  return absl::StrCat(certificates ? "TLS" : "token", " over ", over_grpc ? "gRPC" : "soft",
                      encrypt == "auto" ? "" : absl::StrCat(", encrypt=", encrypt));
}

std::vector<WiredPair::Way> WiredPair::All() {
  return {{true, false}, {false, false}, {true, true}, {false, true}};
}

ServerConfig WiredPair::Config(const std::string& job, const std::string& here, int port,
                               int nic) const {
  ServerConfig config;
  config.cluster = "lab";
  config.job = job;
  config.protocol = way_.over_grpc ? "grpc" : "grpc+verbs";
  config.nic = "soft";
  config.shm = "off";
  config.encrypt = way_.encrypt;
  config.listen = absl::StrCat(kListen, ":", port);
  config.advertise = absl::StrCat(here, ":", port);
  config.nic_listen = absl::StrCat(kListen, ":", nic);
  config.pollers = "1";  // One port for the NIC.
  config.open_cluster = true;
  config.patience = absl::Seconds(20);
  config.stop_deadline = absl::Seconds(3);
  if (way_.certificates) {
    const std::string folder = absl::StrCat(folder_, "/", job);
    mkdir(folder.c_str(), 0700);
    authority_.Write(folder, absl::StrCat("tryst://lab/job:", job));
    config.certificate_file = folder + "/cert.pem";
    config.key_file = folder + "/key.pem";
    config.ca_file = folder + "/ca.pem";
  } else {
    config.token_file = folder_ + "/wire.token";
    std::ofstream(config.token_file) << "0123456789abcdef0123\n";
    chmod(config.token_file.c_str(), 0600);
  }
  return config;
}

std::unique_ptr<Server> WiredPair::Start(const ServerConfig& config) {
  auto server = ServerBuilder().SetEnvironment({}).Build(config);
  absl::Status started = server.status();
  if (started.ok()) started = (*server)->Start();
  if (started.ok()) return *std::move(server);
  trouble_ = std::string(started.message());
  return nullptr;
}

WiredPair::WiredPair(const Way& way, const std::string& folder) : way_(way), folder_(folder) {
  for (int& port : ports_) port = FreePort();
  taps_[0] = std::make_unique<WireTap>(kPsHere, kListen, std::vector<int>{ports_[0], ports_[1]});
  taps_[1] =
      std::make_unique<WireTap>(kWorkerHere, kListen, std::vector<int>{ports_[2], ports_[3]});
  if (!taps_[0]->listens() || !taps_[1]->listens()) {
    trouble_ = "nobody can listen on the wire";
    return;
  }
  ps_ = Start(Config("ps", kPsHere, ports_[0], ports_[1]));
  if (ps_ == nullptr) return;
  ServerConfig worker = Config("worker", kWorkerHere, ports_[2], ports_[3]);
  worker.join = absl::StrCat(kPsName, "@", kPsHere, ":", ports_[0]);
  worker_ = Start(worker);
  if (worker_ == nullptr) return;
  sends_ = *ps_->steps()->StartStep(1);
  receives_ = *worker_->steps()->StartStep(1);
}

WiredPair::~WiredPair() = default;

absl::Status WiredPair::Fetch() {
  const TensorKey key =
      *TensorKey::Parse(absl::StrFormat("%s/device:CPU:0;%016x;%s/device:CPU:0;k%d;0:0", kPsName,
                                        ps_->incarnation(), kWorkerName, next_++));
  Tensor tensor =
      *Tensor::Allocate(DType::kFloat, TensorShape({static_cast<int64_t>(text_.size() / 4)}));
  memcpy(tensor.mutable_data(), text_.data(), text_.size());
  const absl::Status sent = sends_->Send(key, {}, tensor, false);
  if (!sent.ok()) return sent;
  const auto got = receives_->Recv(key, {}, absl::Seconds(40));
  if (!got.ok()) return got.status();
  if (got->tensor.bytes() != text_.size() ||
      memcmp(got->tensor.data_as<char>(), text_.data(), text_.size()) != 0) {
    ++wrong_;
  }
  return absl::OkStatus();
}

std::string WiredPair::Explain() const { return worker_->Explain(kPsName); }

uint64_t WiredPair::markers() const { return taps_[0]->markers() + taps_[1]->markers(); }
uint64_t WiredPair::hellos() const { return taps_[0]->hellos() + taps_[1]->hellos(); }
uint64_t WiredPair::bytes() const { return taps_[0]->bytes() + taps_[1]->bytes(); }

bool WiredPair::Edit(WireEdit edit, int times) {
  bool edited = false;
  for (int i = 0; i < times && trouble_.empty(); ++i) edited |= EditOnce(edit);
  return edited;
}

bool WiredPair::EditOnce(WireEdit edit) {
  // Either end dials the NIC's connections, as their tokens have it. With a token gRPC's own words
  // can be edited, and a downgrade edits those.
  const bool of_calls = way_.over_grpc || (edit == WireEdit::kDowngrade && !way_.certificates);
  taps_[0]->Edit(edit, ports_[of_calls ? 0 : 1], 1);
  taps_[1]->Edit(edit, ports_[of_calls ? 2 : 3], 1);
  const absl::Time end = absl::Now() + absl::Seconds(15);
  int edits = 0;
  while (edits == 0 && absl::Now() < end) {
    // It may fail; what counts is that it does not come with other bytes.
    (void)Fetch();
    edits = taps_[0]->edits() + taps_[1]->edits();
    // A connection in use is not made anew for a downgrade.
    if (edit == WireEdit::kDowngrade) break;
  }
  const auto open = [this] { return taps_[0]->edited_open() + taps_[1]->edited_open(); };
  // A call whose answer was changed ends, and its connection may go on.
  const bool ends = edit != WireEdit::kDowngrade && (way_.certificates || !way_.over_grpc);
  for (int i = 0; ends && i < 100 && open() > 0; ++i) {
    (void)Fetch();
    absl::SleepFor(absl::Milliseconds(50));
  }
  if (ends && open() > 0) {
    trouble_ = absl::StrCat("a connection goes on after the edit ", WireEditName(edit));
  }
  for (const auto& tap : taps_) tap->Edit(WireEdit::kNone, 0, 0);
  return edits > 0;
}

}  // namespace tryst
