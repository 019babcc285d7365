#include "channel/rdma/key_habits.h"

#include <algorithm>

namespace tryst {

KeyHabits::Habit* KeyHabits::Of(const FetchKey& key) {
  if (key.id >= habits_.size()) habits_.resize(key.id + 1);
  Habit* habit = &habits_[key.id];
  if (habit->key != key.key) {  // The number was another key's.
    *habit = Habit();
    habit->key = key.key;
  }
  return habit;
}

// For the next one.
void KeyHabits::NoteBytes(const FetchKey& key, uint64_t bytes) {
  Of(key)->bytes_last = std::max<uint64_t>(bytes, 1);
}

void KeyHabits::NoteStep(const FetchKey& key, int64_t step_id) {
  Habit* entry = Of(key);
  const uint64_t stride = static_cast<uint64_t>(step_id) - static_cast<uint64_t>(entry->step_last);
  entry->regular = stride != 0 && stride == entry->stride ? entry->regular + 1 : 0;
  entry->stride = stride;
  entry->step_last = step_id;
}

void KeyHabits::NoteTensor(const FetchKey& key, const Tensor& tensor) {
  wire::TensorMeta* like = &Of(key)->like;
  *like = wire::TensorMeta();
  if (tensor.dtype() == DType::kString) return;
  like->dtype = static_cast<uint8_t>(tensor.dtype());
  like->rank = static_cast<uint8_t>(tensor.shape().rank());
  for (int i = 0; i < tensor.shape().rank(); ++i) like->dims[i] = tensor.shape().dim(i);
  like->bytes = tensor.bytes();
}

}  // namespace tryst
