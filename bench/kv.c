/* kv SPANS SIZE ROUNDS gather|arena|abort SETTING...: what bench/kv.py does from Python, by the C
 * interface. Blocks that lie anywhere in a region of another process come into blocks that lie
 * anywhere in ours; with "arena" it is memory that both map; "abort" cancels them at random
 * moments. It prints nanoseconds of a fetch, or from a cancel until the memory is ours again:
 * median, 99th percentile; then processor time of both processes in each, how many bytes came
 * after a cancel, and processor time of both in a second with nothing to do. */
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../examples/c/pair.h"

static int64_t Now(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static int Compare(const void* a, const void* b) {
  const int64_t x = *(const int64_t*)a, y = *(const int64_t*)b;
  return x < y ? -1 : x > y;
}

static uint32_t* Blocks(unsigned seed, size_t spans) { /* `spans` of four times as many. */
  const size_t all = 4 * spans;
  uint32_t* const blocks = malloc(all * sizeof(*blocks));
  size_t i;
  srand(seed);
  for (i = 0; i < all; ++i) blocks[i] = (uint32_t)i;
  for (i = 0; i < spans; ++i) {
    const size_t other = i + ((size_t)rand() << 16 ^ (size_t)rand()) % (all - i);
    const uint32_t block = blocks[i];
    blocks[i] = blocks[other];
    blocks[other] = block;
  }
  return blocks;
}

static char* Fill(char* pool, size_t bytes, unsigned seed) {
  size_t i;
  for (i = 0; i < bytes; ++i) pool[i] = (char)(i * 31 + i / 251 + seed);
  return pool;
}

static tryst_tensor* Adopt(char* data, size_t bytes) {
  const int64_t dims = (int64_t)bytes;
  tryst_tensor* tensor;
  Check(tryst_tensor_adopt(data, TRYST_UINT8, &dims, 1, NULL, NULL, &tensor));
  return tensor;
}

static tryst_server* Start(const char* job, const char* join, char** settings, int count) {
  const char* all[32] = {"--listen=127.0.0.1:0", "--insecure", "--open_cluster", job, join};
  tryst_server* server;
  int used = join == NULL ? 4 : 5;
  while (count-- > 0 && used < 32) all[used++] = *settings++;
  Check(tryst_server_create(all, (size_t)used, &server));
  Check(tryst_server_start(server));
  return server;
}

static void Own(int out, int in, size_t bytes, int in_arena, char** settings, int count) {
  tryst_server* const server = Start("--job=owner", NULL, settings, count);
  const int64_t dims = (int64_t)bytes;
  tryst_region* region;
  tryst_tensor* memory;
  char text[512], byte;
  if (in_arena) {
    Check(tryst_server_allocate(server, TRYST_UINT8, &dims, 1, &memory));
  } else {
    memory = Adopt(malloc(bytes), bytes);
  }
  Fill(tryst_tensor_data(memory), bytes, 1);
  Check(tryst_region_open(server, "pool", memory, NULL, 0, &region));
  snprintf(text, sizeof(text), "%s@%s %016llx", tryst_server_worker(server),
           tryst_server_address(server), (unsigned long long)tryst_server_incarnation(server));
  if (write(out, text, sizeof(text)) < 0 || read(in, &byte, 1) < 0) _exit(1);
  _exit(0);
}

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  const size_t spans = (size_t)atol(argv[1]), size = (size_t)atol(argv[2]);
  const int rounds = atoi(argv[3]), aborts = strcmp(argv[4], "abort") == 0;
  const size_t bytes = 4 * spans * size;
  int up[2], down[2], i;
  char text[512], join[600], source[300], sink[300];
  char *incarnation, *at, *key;
  if (pipe(up) != 0 || pipe(down) != 0) return 1;
  const pid_t owner = fork();
  if (owner == 0) {
    close(down[1]);
    Own(up[1], down[0], bytes, strcmp(argv[4], "arena") == 0, argv + 5, argc - 5);
  }
  if (read(up[0], text, sizeof(text)) != (ssize_t)sizeof(text)) return 1;
  incarnation = strchr(text, ' ');
  *incarnation++ = '\0';
  snprintf(join, sizeof(join), "--join=%s", text);
  tryst_server* const server = Start("--job=reader", join, argv + 5, argc - 5);
  at = strchr(text, '@');
  *at = '\0';
  snprintf(source, sizeof(source), "%s/device:CPU:0", text);
  snprintf(sink, sizeof(sink), "%s/device:CPU:0", tryst_server_worker(server));
  Check(tryst_key(source, strtoull(incarnation, NULL, 16), sink, "|region|pool", 0, 0, &key));
  char* const mine = Fill(malloc(bytes), bytes, 2);
  tryst_tensor* const into = Adopt(mine, bytes);
  uint32_t* const land = Blocks(77, spans);
  uint32_t* const want[3] = {Blocks(1, spans), Blocks(2, spans), Blocks(3, spans)};
  int64_t* const took = calloc((size_t)rounds, sizeof(*took));
  const tryst_selection lands = {TRYST_SELECT_INDICES, 0, size, land, spans};
  clockid_t of_owner;
  int64_t cpu = 0, peer = 0, whole = 0, idle = 0, idle_peer = 0;
  size_t late = 0, k;
  clock_getcpuclockid(owner, &of_owner);
  for (i = -5; i < rounds; ++i) {
    const tryst_selection wants = {TRYST_SELECT_INDICES, 0, size, want[(i + 6) % 3], spans};
    tryst_op* op;
    tryst_group* group = NULL;
    if (i == 0) {
      usleep(300000);
      idle = Now(CLOCK_PROCESS_CPUTIME_ID), idle_peer = Now(of_owner);
      usleep(1000000);
      cpu = Now(CLOCK_PROCESS_CPUTIME_ID), peer = Now(of_owner);
      idle = cpu - idle, idle_peer = peer - idle_peer;
    }
    if (aborts && i >= 0) Check(tryst_group_create(&group));
    int64_t began = Now(CLOCK_MONOTONIC);
    Check(tryst_gather_start(server, 1, key, &wants, into, &lands, NULL, 60000, group, NULL, NULL,
                             &op));
    if (group != NULL) {
      const int64_t until = began + whole * (rand() % 1200) / 1000;
      while (Now(CLOCK_MONOTONIC) < until) {
      }
      began = Now(CLOCK_MONOTONIC);
      tryst_group_cancel(group);
      tryst_group_fenced(group, -1);
    } else {
      tryst_op_wait(op, -1);
    }
    const int64_t ns = Now(CLOCK_MONOTONIC) - began;
    if (i < 0 || group == NULL) {
      tryst_tensor* got;
      int is_dead;
      tryst_op_wait(op, -1);
      Check(tryst_op_result(op, 0, &got, &is_dead));
      tryst_tensor_free(got);
    }
    whole = i < 0 ? ns : whole;
    if (i >= 0) took[i] = ns;
    if (group != NULL) {
      memset(mine, 0x5a, bytes);
      if (i % 10 == 0) usleep(20000);
      for (k = 0; k < bytes; ++k) late += mine[k] != 0x5a;
      tryst_group_free(group);
    } else {
      for (k = 0; k < spans; k += 1 + spans / 100) {
        const size_t there = want[(i + 6) % 3][k] * size;
        if (mine[land[k] * size] != (char)(there * 31 + there / 251 + 1)) return 3;
      }
    }
    tryst_op_free(op);
  }
  cpu = Now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
  peer = Now(of_owner) - peer;
  qsort(took, (size_t)rounds, sizeof(*took), Compare);
  printf("%lld %lld %lld %lld %zu %lld %lld\n", (long long)took[rounds / 2],
         (long long)took[rounds * 99 / 100], (long long)cpu / rounds, (long long)peer / rounds,
         late, (long long)idle, (long long)idle_peer);
  fflush(stdout);
  close(down[1]);
  waitpid(owner, NULL, 0);
  _exit(0);
}
