// Runs a fuzz target without libFuzzer: with every file named on the command line, then with inputs
// mutated from those. An input depends only on its number, so a failure can be repeated: the last
// line printed says where to start.
//
//   TARGET [--from=N] [--count=N] [FILE...]

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr uint64_t kDefaultCount = 20000;
constexpr uint64_t kPrintEvery = 1000;
constexpr size_t kMaxGrowth = 64;

void RunOne(const std::string& input) {
  // A heap copy of the exact size, so that AddressSanitizer sees a read past the end.
  const std::vector<uint8_t> bytes(input.begin(), input.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

std::string Mutated(const std::vector<std::string>& seeds, uint64_t number) {
  std::mt19937_64 random(number);
  std::string input = seeds[random() % seeds.size()];
  for (uint64_t changes = 1 + random() % 4; changes > 0; --changes) {
    const size_t at = input.empty() ? 0 : random() % input.size();
    switch (random() % 6) {
      case 0:
        if (!input.empty()) input[at] = static_cast<char>(random());
        break;
      case 1:
        if (!input.empty()) input[at] ^= static_cast<char>(1 << random() % 8);
        break;
      case 2:
        input.resize(at);
        break;
      case 3:
        input.insert(at, std::string(random() % kMaxGrowth, static_cast<char>(random())));
        break;
      case 4:
        input.erase(at, random() % kMaxGrowth);
        break;
      case 5: {
        const std::string& other = seeds[random() % seeds.size()];
        input.replace(at, std::string::npos, other, other.empty() ? 0 : random() % other.size());
        break;
      }
    }
  }
  return input;
}

bool ReadNumber(const std::string& arg, const std::string& flag, uint64_t* value) {
  if (arg.compare(0, flag.size(), flag) != 0) return false;
  *value = strtoull(arg.c_str() + flag.size(), nullptr, 10);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t from = 0;
  uint64_t count = kDefaultCount;
  std::vector<std::string> seeds = {""};
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (ReadNumber(arg, "--from=", &from) || ReadNumber(arg, "--count=", &count)) continue;
    std::ifstream file(arg, std::ios::binary);
    if (!file) {
      fprintf(stderr, "cannot read %s\n", arg.c_str());
      return 2;
    }
    printf("file %s\n", arg.c_str());
    fflush(stdout);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    RunOne(seeds.back());
  }
  for (uint64_t number = from; number < from + count; ++number) {
    if ((number - from) % kPrintEvery == 0) {
      printf("mutations --from=%llu --count=%llu\n", static_cast<unsigned long long>(number),
             static_cast<unsigned long long>(kPrintEvery));
      fflush(stdout);
    }
    RunOne(Mutated(seeds, number));
  }
  return 0;
}
