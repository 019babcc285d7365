#include "plugins/tensorflow/asks.h"

namespace tryst_tensorflow {
namespace {

// Bounds what a peer can make us store.
constexpr size_t kMaxKeyBytes = 4096;

template <typename Number>
void Append(Number number, std::string* out) {
  auto bits = static_cast<uint64_t>(number);
  for (size_t i = 0; i < sizeof(Number); ++i, bits >>= 8) out->push_back(static_cast<char>(bits));
}

template <typename Number>
bool Take(std::string_view* in, Number* number) {
  if (in->size() < sizeof(Number)) return false;
  uint64_t bits = 0;
  for (size_t i = sizeof(Number); i-- > 0;) bits = bits << 8 | static_cast<uint8_t>((*in)[i]);
  *number = static_cast<Number>(bits);
  in->remove_prefix(sizeof(Number));
  return true;
}

bool TakeKey(std::string_view* in, std::string_view* key) {
  uint16_t bytes = 0;
  if (!Take(in, &bytes) || bytes == 0 || bytes > kMaxKeyBytes || bytes > in->size()) return false;
  *key = in->substr(0, bytes);
  in->remove_prefix(bytes);
  return true;
}

bool TakeAsk(std::string_view* in, Ask* ask) {
  uint8_t kind = 0;
  if (!Take(in, &kind)) return false;
  ask->kind = static_cast<Ask::Kind>(kind);
  switch (ask->kind) {
    case Ask::kTensor:
    case Ask::kNewTensor:
      if (!Take(in, &ask->id) || !Take(in, &ask->step) || !Take(in, &ask->lane)) return false;
      if (ask->id >= kMaxKeys || ask->lane >= kMaxLanes) return false;
      return ask->kind == Ask::kTensor || TakeKey(in, &ask->key);
    case Ask::kCancel:
      return Take(in, &ask->step);
    case Ask::kForget:
      return true;
  }
  return false;
}

}  // namespace

void AppendAsk(const Ask& ask, std::string* batch) {
  Append(static_cast<uint8_t>(ask.kind), batch);
  if (ask.kind == Ask::kForget) return;
  if (ask.kind == Ask::kCancel) return Append(ask.step, batch);
  Append(ask.id, batch);
  Append(ask.step, batch);
  Append(ask.lane, batch);
  if (ask.kind == Ask::kTensor) return;
  Append(static_cast<uint16_t>(ask.key.size()), batch);
  batch->append(ask.key);
}

bool ReadAsks(std::string_view batch, std::vector<Ask>* asks) {
  asks->clear();
  while (!batch.empty()) {
    Ask ask;
    if (!TakeAsk(&batch, &ask)) return false;
    asks->push_back(ask);
  }
  return true;
}

std::string WriteAnswer(const Answer& answer) {
  std::string bytes;
  Append(static_cast<uint8_t>(answer.kind), &bytes);
  Append(answer.code, &bytes);
  bytes += answer.message;
  return bytes;
}

bool ReadAnswer(std::string_view bytes, Answer* answer) {
  uint8_t kind = 0;
  if (!Take(&bytes, &kind) || !Take(&bytes, &answer->code)) return false;
  if (kind != Answer::kByGrpc && kind != Answer::kFailed) return false;
  answer->kind = static_cast<Answer::Kind>(kind);
  answer->message.assign(bytes);
  return true;
}

}  // namespace tryst_tensorflow
