// Open MPI's point-to-point calls. mpirun starts it and chooses the transport: shm, tcp.
#include <mpi.h>
#include <unistd.h>

#include "bench/peers/harness.h"

namespace tryst {
namespace {

constexpr int kRequestTag = 100000;
constexpr int kRequestBuffers = 160;

struct Request {
  int slot;
  char key[kKeyBytes];
};

class MpiProducer final : public ProducerEnd {
 public:
  explicit MpiProducer(const std::vector<size_t>& sizes)
      : table_(sizes),
        requests_(kRequestBuffers),
        asked_(kRequestBuffers),
        sent_(kRequestBuffers, MPI_REQUEST_NULL),
        ready_(kRequestBuffers) {
    for (int i = 0; i < kRequestBuffers; ++i) Arm(i);
  }
  Table& table() override { return table_; }
  std::string Address() override { return ""; }
  void Poll(bool) override {
    int count;
    MPI_Testsome(kRequestBuffers, asked_.data(), &count, ready_.data(), MPI_STATUSES_IGNORE);
    for (int i = 0; i < count; ++i) {
      const Request request = requests_[ready_[i]];
      Arm(ready_[i]);
      const Held held = table_.Find(request.key);
      MPI_Wait(&sent_[request.slot], MPI_STATUS_IGNORE);
      MPI_Isend(held.data, static_cast<int>(held.bytes), MPI_BYTE, 1, request.slot, MPI_COMM_WORLD,
                &sent_[request.slot]);
    }
  }

 private:
  void Arm(int index) {
    MPI_Irecv(&requests_[index], sizeof(Request), MPI_BYTE, 1, kRequestTag, MPI_COMM_WORLD,
              &asked_[index]);
  }

  Table table_;
  std::vector<Request> requests_;
  std::vector<MPI_Request> asked_, sent_;
  std::vector<int> ready_;
};

class MpiConsumer final : public ConsumerEnd {
 public:
  explicit MpiConsumer(const ConsumerNeeds& needs)
      : needs_(needs),
        requests_(needs.slots),
        asked_(needs.slots, MPI_REQUEST_NULL),
        landing_(needs.slots, MPI_REQUEST_NULL),
        into_(needs.slots),
        ready_(needs.slots) {}
  void Ask(int slot, const std::string& key, char* into, size_t bytes) override {
    into_[slot] = into;
    MPI_Irecv(into, static_cast<int>(bytes), MPI_BYTE, 0, slot, MPI_COMM_WORLD, &landing_[slot]);
    MPI_Wait(&asked_[slot], MPI_STATUS_IGNORE);
    requests_[slot].slot = slot;
    memcpy(requests_[slot].key, key.data(), kKeyBytes);
    MPI_Isend(&requests_[slot], sizeof(Request), MPI_BYTE, 0, kRequestTag, MPI_COMM_WORLD,
              &asked_[slot]);
  }
  void Poll(bool) override {
    int count;
    MPI_Testsome(needs_.slots, landing_.data(), &count, ready_.data(), MPI_STATUSES_IGNORE);
    for (int i = 0; i < count; ++i) needs_.landed(ready_[i], into_[ready_[i]]);
  }

 private:
  const ConsumerNeeds needs_;
  std::vector<Request> requests_;
  std::vector<MPI_Request> asked_, landing_;
  std::vector<char*> into_;
  std::vector<int> ready_;
};

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, producer_pid = getpid();
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Bcast(&producer_pid, 1, MPI_INT, 0, MPI_COMM_WORLD);
  tryst::Library library;
  library.produce = [](const std::string&, const std::vector<size_t>& sizes) {
    return std::make_unique<tryst::MpiProducer>(sizes);
  };
  library.consume = [](const std::string&, const tryst::ConsumerNeeds& needs) {
    return std::make_unique<tryst::MpiConsumer>(needs);
  };
  return tryst::RunLibraryRank(rank, producer_pid, argc, argv, library);
}
