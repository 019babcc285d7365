#include "plugins/tensorflow/worker.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

namespace tryst_tensorflow {
namespace {

constexpr std::chrono::seconds kReachWithin(6);
constexpr int64_t kStopWithinMs = 2000;

bool IsSet(const char* name) {
  const char* value = getenv(name);
  return value != nullptr && *value != '\0';
}

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host.rfind("127.", 0) == 0 || host == "[::1]";
}

// TensorFlow's own gRPC authenticates nobody either. Tryst does that only among workers of one
// machine; elsewhere the environment must say who may connect (docs/CONFIG.md).
bool SaysWhoGetsIn() {
  return IsSet("TRYST_TOKEN_FILE") || IsSet("TRYST_CERTIFICATE_FILE") || IsSet("TRYST_INSECURE") ||
         IsSet("TRYST_CONFIG");
}

// Splits "/job:ps/replica:0/task:3" into "ps" and 3.
bool SplitName(const std::string& name, std::string* job, int* task) {
  char text[256];
  if (sscanf(name.c_str(), "/job:%255[^/]/replica:0/task:%d", text, task) != 2) return false;
  *job = text;
  return true;
}

std::string NewFolder() {
  const char* parent = getenv("TMPDIR");
  std::string path = std::string(parent != nullptr ? parent : "/tmp") + "/tryst-tensorflow-XXXXXX";
  return mkdtemp(path.data()) == nullptr ? "" : path;
}

}  // namespace

std::string TakeMessage(const Library& library, tryst_status* status) {
  if (status == nullptr) return "";
  std::string message = library.tryst_status_message(status);
  library.tryst_status_free(status);
  return message.empty() ? "failed" : message;
}

std::unique_ptr<Worker> Worker::Start(const Library* library, const std::string& job, int task,
                                      const std::string& host, std::string* why) {
  const std::string folder = NewFolder();
  if (folder.empty()) {
    *why = "no folder could be made for the addresses of the others (TMPDIR says where)";
    return nullptr;
  }
  std::unique_ptr<Worker> worker(new Worker(library, folder));
  if (!worker->WriteAddresses()) {
    *why = "cannot write " + folder;
    return nullptr;
  }
  std::vector<std::string> settings = {
      "--cluster=tensorflow",    "--job=" + job,   "--task=" + std::to_string(task),
      "--listen=" + host + ":0", "--open_cluster", "--resolver=file:" + folder + "/cluster.json"};
  if (!SaysWhoGetsIn() && IsLoopback(host)) settings.push_back("--insecure");
  // TensorFlow's users expect a lost worker to be noticed within this time.
  if (!IsSet("TRYST_PATIENCE")) settings.push_back("--patience=10s");
  std::vector<const char*> texts;
  for (const std::string& setting : settings) texts.push_back(setting.c_str());
  *why = TakeMessage(*library,
                     library->tryst_server_create(texts.data(), texts.size(), &worker->server_));
  if (why->empty()) *why = TakeMessage(*library, library->tryst_server_start(worker->server_));
  if (!why->empty()) return nullptr;
  worker->self_ = {library->tryst_server_worker(worker->server_),
                   library->tryst_server_address(worker->server_),
                   library->tryst_server_incarnation(worker->server_)};
  worker->introducer_ = std::thread([raw = worker.get()] { raw->Run(); });
  return worker;
}

Worker::~Worker() {
  Stop();
  unlink((folder_ + "/cluster.json").c_str());
  rmdir(folder_.c_str());
  // The server is leaked: tensors that TensorFlow still holds may lie in its memory.
}

void Worker::Stop() {
  if (stopped_.exchange(true)) return;
  more_.notify_all();
  if (introducer_.joinable()) introducer_.join();
  if (server_ == nullptr) return;
  TakeMessage(*library_, library_->tryst_server_stop(server_, kStopWithinMs));
}

void Worker::Introduce(const Peer& peer, std::function<void(const std::string&)> known) {
  Introduction introduction;
  introduction.peer = peer;
  introduction.known = std::move(known);
  introduction.until = std::chrono::steady_clock::now() + kReachWithin;
  const std::lock_guard<std::mutex> lock(mu_);
  introductions_.push_back(std::move(introduction));
  more_.notify_all();
}

void Worker::RunLater(std::chrono::milliseconds after, std::function<void()> run) {
  const std::lock_guard<std::mutex> lock(mu_);
  later_.push_back({std::chrono::steady_clock::now() + after, std::move(run)});
}

void Worker::RunWhatIsDue() {
  std::vector<Later> due;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    const auto now = std::chrono::steady_clock::now();
    const auto first = std::stable_partition(
        later_.begin(), later_.end(), [now](const Later& later) { return later.when > now; });
    std::move(first, later_.end(), std::back_inserter(due));
    later_.erase(first, later_.end());
  }
  for (const Later& later : due) {
    if (!stopped_) later.run();
  }
}

void Worker::Run() {
  std::vector<Introduction> under_way;
  while (!stopped_) {
    std::vector<Introduction> fresh;
    {
      std::unique_lock<std::mutex> lock(mu_);
      const auto pause = std::chrono::milliseconds(under_way.empty() ? 200 : 20);
      more_.wait_for(lock, pause, [this] { return stopped_ || !introductions_.empty(); });
      fresh.swap(introductions_);
    }
    for (Introduction& introduction : fresh) {
      addresses_[introduction.peer.name] = introduction.peer.address;
      under_way.push_back(std::move(introduction));
    }
    if (!fresh.empty() && !WriteAddresses()) {
      for (Introduction& introduction : under_way) introduction.why = "cannot write " + folder_;
    }
    Reach(&under_way);
    RunWhatIsDue();
  }
}

void Worker::Reach(std::vector<Introduction>* under_way) {
  std::vector<Introduction> rest;
  for (Introduction& introduction : *under_way) {
    if (stopped_) return;
    if (Answers(&introduction)) {
      introduction.known("");
    } else if (std::chrono::steady_clock::now() > introduction.until) {
      introduction.known(introduction.why);
    } else {
      rest.push_back(std::move(introduction));
    }
  }
  under_way->swap(rest);
}

bool Worker::Answers(Introduction* introduction) {
  uint64_t heard = 0;
  introduction->why =
      TakeMessage(*library_, library_->tryst_server_peer_incarnation(
                                 server_, introduction->peer.name.c_str(), 100, &heard));
  if (introduction->why.empty() && heard == introduction->peer.incarnation) return true;
  if (introduction->why.empty()) introduction->why = "another life of it answers";
  return false;
}

// The library reads the file again when it changes.
bool Worker::WriteAddresses() {
  std::map<std::string, std::map<int, std::string>> jobs;
  for (const auto& [name, address] : addresses_) {
    std::string job;
    int task = 0;
    if (SplitName(name, &job, &task)) jobs[job][task] = address;
  }
  std::string json = "{\"cluster\":{\"job\":[";
  const char* next_job = "";
  for (const auto& [job, tasks] : jobs) {
    json += std::string(next_job) + "{\"name\":\"" + job + "\",\"tasks\":{";
    next_job = ",";
    const char* next_task = "";
    for (const auto& [task, address] : tasks) {
      json += std::string(next_task) + "\"" + std::to_string(task) + "\":\"" + address + "\"";
      next_task = ",";
    }
    json += "}}";
  }
  json += "]}}\n";
  const std::string path = folder_ + "/cluster.json";
  std::ofstream out(path + ".new");
  out << json;
  out.close();
  return out.good() && rename((path + ".new").c_str(), path.c_str()) == 0;
}

std::string Worker::Explain() const {
  char* text = library_->tryst_server_explain(server_, "");
  std::string explained = text == nullptr ? "" : text;
  library_->tryst_string_free(text);
  return explained;
}

std::string Worker::StatsJson() const {
  char* text = library_->tryst_server_stats_json(server_);
  std::string json = text == nullptr ? "{}" : text;
  library_->tryst_string_free(text);
  return json;
}

}  // namespace tryst_tensorflow
