#include "server/config/config.h"

namespace tryst {

const std::vector<RemovedSetting>& RemovedSettings() {
  static const std::vector<RemovedSetting>& rows = *new std::vector<RemovedSetting>{
      {"authenticate_within",
       "Callers have 10 s to prove who they are: leave it out. A program with gRPC services of its "
       "own gives their callers more in ServerBuilder::AddService."},
      {"base_port", "Write the port after the resolver's name, as in resolver=slurm:5000."},
      {"callback_threads",
       "There is one callback thread more than pollers: leave it out. A program whose callbacks "
       "compute for long or block gives the server an executor (ServerBuilder::SetExecutor) or "
       "hands the work on."},
      {"cluster_file", "Write its path after the resolver's name: resolver=file:PATH."},
      {"cluster_jobs", "Write the same text to cluster_spec."},
      {"digests",
       "Tensors have a CRC-32C wherever nothing else checks their way from end to end: leave it "
       "out."},
      {"etcd_endpoints", "Write them after the resolver's name: resolver=etcd:HOST:PORT,..."},
      {"etcd_lease",
       "The lease is as long as patience, but from 2 s to 10 s: leave it out, or set patience."},
      {"etcd_user", "Write USER:PASSWORD to the file that etcd_password_file names."},
      {"gpu_chunk_bytes",
       "Pieces have 2MiB, since both ends must agree on their size: leave it out."},
      {"gpu_slots", "Each GPU has 16 pieces of 2MiB for each direction: leave it out."},
      {"gpu_standby_us",
       "A kernel stands by for 100 us, and only while small tensors follow each other: leave it "
       "out."},
      {"gpu_ways",
       "A way between GPUs is used only after a test has shown that it works here: leave it out."},
      {"grpc_idle", "Connections without calls are closed after 10 s: leave it out."},
      {"helpers",
       "There are as many helpers as the processors allow, and they sleep when other work needs "
       "the processors: leave it out. To keep Tryst off some processors, start the program on "
       "others (taskset, a cpuset)."},
      {"keep_for",
       "Tensors are kept for 2 min, or twice patience where that is more: leave it out, or set "
       "max_kept_bytes."},
      {"kubernetes_service",
       "Write the service after the resolver's name: resolver=kubernetes:SERVICE."},
      {"max_asked",
       "1024 fetches have a call of their own, and further ones share calls: leave it out."},
      {"max_held_bytes_per_step", "Set max_held_bytes, which bounds all steps together."},
      {"max_waiting",
       "A million fetches may wait for each peer, and further ones wait in line: leave it out."},
      {"message_bytes",
       "Messages have 8448 bytes, so that a tensor of 8 KiB fits inside: leave it out."},
      {"mpi_hosts", "Write the hosts after the resolver's name: resolver=mpi:HOSTS."},
      {"offered_bytes",
       "Tensors of up to 256KiB are offered, and larger ones take one more round trip, once: leave "
       "it out."},
      {"poller_cpus", "Set pollers=cpus:LIST, which starts a poller on each of them."},
      {"reflection",
       "The server lists its services to nobody. Give grpcurl our files: -proto "
       "proto/transport.proto."},
      {"reload_period",
       "Certificates are looked at every 10 s, by trystd on SIGHUP at once: leave it out."},
      {"ring_slots", "There are 16 messages for each peer: leave it out."},
      {"slots",
       "There are 128 slots for each peer over a NIC, 256 over shared memory: leave it out."},
      {"spin_us",
       "A poller spins for up to 50 us, and only where that has paid lately: leave it out."},
      {"status_anywhere", "Set status_token_file: whoever has that token sees the page."},
      {"stripe_bytes", "Tensors from 1 MiB on are spread over all queue_pairs: leave it out."},
      {"trace_records", "The newest 4,096 operations are kept: leave it out."},
      {"trace_slow", "Operations that take 10 ms or more are always recorded: leave it out."},
  };
  return rows;
}

}  // namespace tryst
