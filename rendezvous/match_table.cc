#include "rendezvous/match_table.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace tryst {
namespace {

constexpr size_t kFirstBuckets = 16;
constexpr size_t kFirstBlockItems = 8;
constexpr size_t kMaxBlockItems = 1024;

}  // namespace

MatchTable::MatchTable(uint16_t shard)
    : shard_(shard), buckets_(kFirstBuckets, nullptr), next_block_items_(kFirstBlockItems) {}

MatchTable::~MatchTable() { TRYST_CHECK(heads_ == 0); }

Item** MatchTable::Find(const TensorKey& key) {
  const uint64_t hash = key.hash();
  Item** head = &buckets_[BucketOf(hash)];
  while (*head != nullptr && ((*head)->key_hash != hash || (*head)->key != key)) {
    head = &(*head)->chain;
  }
  return head;
}

Item* MatchTable::New(const TensorKey& key) {
  if (free_ == nullptr) AddBlock();
  Item* item = std::exchange(free_, free_->chain);
  item->chain = nullptr;
  item->key = key;
  item->key_hash = key.hash();
  item->number = ++next_number_;
  return item;
}

void MatchTable::Free(Item* item) {
  TRYST_DCHECK(!item->linked && item->holds == 0);
  item->key = TensorKey();
  item->is_dead = false;
  item->turn = 0;
  item->batch = nullptr;
  item->cancel_token = Cancellation::kNoToken;
  item->alarm_token = Alarms::kNoToken;
  item->chain = std::exchange(free_, item);
}

void MatchTable::Append(Item** head, Item* item) {
  item->linked = true;
  item->next = nullptr;
  if (*head != nullptr) {
    item->prev = (*head)->tail;
    item->prev->next = item;
    (*head)->tail = item;
    return;
  }
  item->prev = nullptr;
  item->tail = item;
  item->chain = nullptr;  // Find stops at the end of a chain when there is no such queue.
  *head = item;
  if (++heads_ > buckets_.size()) Grow();
}

void MatchTable::InsertByTurn(Item** head, Item* item) {
  Item* after = *head;
  while (after != nullptr && after->turn != 0 && after->turn < item->turn) after = after->next;
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
  item->next = nullptr;
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
  item->next = item->prev = nullptr;
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

void MatchTable::AddBlock() {
  blocks_.push_back(std::make_unique<Item[]>(next_block_items_));
  for (size_t i = next_block_items_; i > 0; --i) {
    Item* item = &blocks_.back()[i - 1];
    item->shard = shard_;
    item->chain = std::exchange(free_, item);
  }
  next_block_items_ = std::min(next_block_items_ * 2, kMaxBlockItems);
}

}  // namespace tryst
