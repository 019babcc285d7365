#include "plugins/tensorflow/keys.h"

#include <charconv>

namespace tryst_tensorflow {
namespace {

// The names of batches repeat, so that the library does not have to keep ever more names. There are
// more of them than batches under way or listened for at once.
constexpr uint64_t kAskKeys = 16;

constexpr char kDevice[] = "/device:CPU:0";

// Takes the text before the separator off `text`, and the separator.
std::string_view TakePart(std::string_view* text, char separator) {
  const size_t end = text->find(separator);
  const std::string_view part = text->substr(0, end);
  text->remove_prefix(end == std::string_view::npos ? text->size() : end + 1);
  return part;
}

uint64_t Number(std::string_view text) {
  uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

std::string Make(const Library& library, const Peer& from, const std::string& to,
                 const std::string& edge, uint64_t frame, uint64_t iter) {
  char* made = nullptr;
  tryst_status* failed =
      library.tryst_key((from.name + kDevice).c_str(), from.incarnation, (to + kDevice).c_str(),
                        edge.c_str(), frame, iter, &made);
  std::string key = made == nullptr ? "" : made;
  library.tryst_string_free(made);
  library.tryst_status_free(failed);
  return key;
}

}  // namespace

std::string TrystKey(const Library& library, std::string_view tensorflow_key, const Peer& producer,
                     const std::string& consumer) {
  const std::string_view from = TakePart(&tensorflow_key, ';');
  TakePart(&tensorflow_key, ';');  // The device's incarnation, which the producer checks.
  const std::string_view to = TakePart(&tensorflow_key, ';');
  std::string edge(TakePart(&tensorflow_key, ';'));
  if (to.empty() || edge.empty() || tensorflow_key.empty()) return "";
  // Host memory of other devices. The library knows only the workers' CPUs, so the device goes into
  // the edge's name.
  if (!EndsWith(from, kDevice)) edge += " from " + std::string(from);
  if (!EndsWith(to, kDevice)) edge += " to " + std::string(to);
  const uint64_t frame = Number(TakePart(&tensorflow_key, ':'));
  return Make(library, producer, consumer, edge, frame, Number(tensorflow_key));
}

std::string AskKey(const Library& library, const Peer& consumer, const std::string& producer,
                   uint64_t n) {
  return Make(library, consumer, producer, "asks of TensorFlow", 0, n % kAskKeys);
}

}  // namespace tryst_tensorflow
