#include "rendezvous/match_table.h"

#include <type_traits>
#include <utility>

namespace tryst {
namespace {

constexpr size_t kFirstBuckets = 16;
constexpr size_t kFirstBlockItems = 8;
constexpr size_t kMaxBlockItems = 1024;

size_t BlockItems(size_t blocks) {
  return blocks < 7 ? kFirstBlockItems << blocks : kMaxBlockItems;
}

}  // namespace

MatchTable::MatchTable(uint16_t shard) : shard_(shard), buckets_(kFirstBuckets, nullptr) {}

MatchTable::~MatchTable() { TRYST_CHECK(heads_ == 0); }

template <typename Kind>
void MatchTable::AddBlock(Pool<Kind>* pool) {
  const size_t count = BlockItems(pool->blocks.size());
  pool->blocks.push_back(std::make_unique<Kind[]>(count));
  for (size_t i = count; i > 0; --i) {
    Kind* item = &pool->blocks.back()[i - 1];
    item->shard = shard_;
    item->is_send = std::is_same_v<Kind, WaitingSend>;
    item->chain = std::exchange(pool->free, item);
  }
}
template void MatchTable::AddBlock(Pool<WaitingSend>* pool);
template void MatchTable::AddBlock(Pool<WaitingReceive>* pool);

WaitingReceive* MatchTable::NewReceive(const TensorKey& key) {
  WaitingReceive* item = New(&receives_, key);
  item->number = ++next_number_;
  return item;
}

ReceiveMore* MatchTable::NewMore() {
  if (free_more_ == nullptr) {
    const size_t count = BlockItems(more_blocks_.size());
    more_blocks_.push_back(std::make_unique<ReceiveMore[]>(count));
    for (size_t i = count; i > 0; --i) {
      ReceiveMore* more = &more_blocks_.back()[i - 1];
      more->next_free = std::exchange(free_more_, more);
    }
  }
  return std::exchange(free_more_, free_more_->next_free);
}

void MatchTable::Free(Item* item) {
  TRYST_DCHECK(!item->linked && item->holds == 0);
  item->key = TensorKey();
  item->is_dead = false;
  if (item->is_send) {
    AsSend(item)->turn = 0;
    item->chain = std::exchange(sends_.free, item);
    return;
  }
  WaitingReceive* receive = AsReceive(item);
  receive->batch = nullptr;
  if (ReceiveMore* more = std::exchange(receive->more, nullptr)) {
    more->cancel_token = Cancellation::kNoToken;
    more->alarm_token = Alarms::kNoToken;
    more->next_free = std::exchange(free_more_, more);
  }
  item->chain = std::exchange(receives_.free, item);
}

void MatchTable::InsertByTurn(Item** head, WaitingSend* item) {
  const auto before = [item](Item* other) {
    return AsSend(other)->turn != 0 && AsSend(other)->turn < item->turn;
  };
  Item* after = *head;
  while (after != nullptr && before(after)) after = after->next;
  if (after == nullptr) return Append(head, item);
  item->linked = true;
  item->next = after;
  item->prev = after->prev;
  after->prev = item;
  if (item->prev != nullptr) {
    item->prev->next = item;
    return;
  }
  item->tail = after->tail;
  item->chain = after->chain;
  *head = item;
}

Item* MatchTable::PopHead(Item** head) {
  Item* item = *head;
  Item* heir = item->next;
  if (heir != nullptr) {
    heir->prev = nullptr;
    heir->tail = item->tail;
    heir->chain = item->chain;
    *head = heir;
  } else {
    *head = item->chain;
    --heads_;
  }
  item->linked = false;
  return item;
}

void MatchTable::Remove(Item* item) {
  if (item->prev == nullptr) {
    Item** head = &buckets_[BucketOf(item->key_hash)];
    while (*head != item) head = &(*head)->chain;
    PopHead(head);
    return;
  }
  item->prev->next = item->next;
  if (item->next != nullptr) {
    item->next->prev = item->prev;
  } else {
    Item* head = *Find(item->key);
    head->tail = item->prev;
  }
  item->linked = false;
}

Item* MatchTable::DetachAll() {
  Item* first = nullptr;
  Item** end = &first;
  for (Item*& bucket : buckets_) {
    for (Item* head = std::exchange(bucket, nullptr); head != nullptr;) {
      Item* next_head = head->chain;
      *end = head;
      end = &head->tail->next;
      for (Item* item = head; item != nullptr; item = item->next) {
        item->linked = false;
        item->prev = nullptr;
      }
      head = next_head;
    }
  }
  heads_ = 0;
  return first;
}

void MatchTable::Grow() {
  std::vector<Item*> old = std::move(buckets_);
  buckets_.assign(old.size() * 2, nullptr);
  for (Item* head : old) {
    while (head != nullptr) {
      Item* next_head = head->chain;
      Item** bucket = &buckets_[BucketOf(head->key_hash)];
      head->chain = *bucket;
      *bucket = head;
      head = next_head;
    }
  }
}

}  // namespace tryst
