#ifndef TRYST_VERBS_INTERVAL_TREE_H_
#define TRYST_VERBS_INTERVAL_TREE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tryst {

// Half-open ranges of addresses, each with a value. Finds those that contain or overlap a given
// range. Ranges may overlap and repeat. It is a treap ordered by start, in which each node knows
// the furthest end below it. Every call costs O(log n), and the nodes that it visits. Needs
// external synchronisation.
template <typename Value>
class IntervalTree {
 public:
  class Node {
   public:
    uint64_t begin() const { return begin_; }
    uint64_t end() const { return end_; }
    Value value;

   private:
    friend class IntervalTree;
    Node(uint64_t begin, uint64_t end, Value value, uint64_t number)
        : value(value), begin_(begin), end_(end), number_(number), furthest_(end) {
      // A hash of the number as the priority, so that no order of insertion makes a long branch.
      uint64_t z = number * 0x9e3779b97f4a7c15u;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
      priority_ = z ^ (z >> 27);
    }
    bool Before(const Node& other) const {
      return begin_ != other.begin_ ? begin_ < other.begin_ : number_ < other.number_;
    }

    const uint64_t begin_;
    const uint64_t end_;
    const uint64_t number_;  // Distinguishes equal ranges.
    uint64_t priority_;      // Never less than a child's.
    uint64_t furthest_;      // The greatest end in this subtree.
    Node* left_ = nullptr;
    Node* right_ = nullptr;
  };

  IntervalTree() = default;
  ~IntervalTree() { Free(root_); }
  IntervalTree(const IntervalTree&) = delete;
  IntervalTree& operator=(const IntervalTree&) = delete;

  size_t size() const { return size_; }

  // REQUIRES: begin < end. The node stays where it is until it is removed.
  Node* Insert(uint64_t begin, uint64_t end, Value value) {
    Node* const node = new Node(begin, end, value, next_number_++);
    InsertBelow(&root_, node);
    ++size_;
    return node;
  }

  // REQUIRES: `node` is in the tree. It is deleted.
  void Remove(Node* node) {
    RemoveBelow(&root_, node);
    delete node;
    --size_;
  }

  // The first node, by start, that contains all of [begin, end) and that `accept` accepts; null:
  // there is none.
  template <typename Accept>
  Node* FindContaining(uint64_t begin, uint64_t end, const Accept& accept) const {
    return FindContaining(root_, begin, end, accept);
  }

  // Calls `visit` for each node that overlaps [begin, end), by start. `visit` must not change the
  // tree.
  template <typename Visit>
  void ForEachOverlapping(uint64_t begin, uint64_t end, const Visit& visit) const {
    ForEachOverlapping(root_, begin, end, visit);
  }

 private:
  static void Free(Node* node) {
    if (node == nullptr) return;
    Free(node->left_);
    Free(node->right_);
    delete node;
  }

  static void Refresh(Node* node) {
    node->furthest_ = node->end_;
    for (const Node* child : {node->left_, node->right_}) {
      if (child != nullptr) node->furthest_ = std::max(node->furthest_, child->furthest_);
    }
  }

  // Splits into the nodes that come before `by`, and the others.
  static void Split(Node* node, const Node& by, Node** before, Node** behind) {
    if (node == nullptr) {
      *before = *behind = nullptr;
    } else if (node->Before(by)) {
      Split(node->right_, by, &node->right_, behind);
      *before = node;
      Refresh(node);
    } else {
      Split(node->left_, by, before, &node->left_);
      *behind = node;
      Refresh(node);
    }
  }

  // REQUIRES: every node in `before` comes before every node in `behind`.
  static Node* Merge(Node* before, Node* behind) {
    if (before == nullptr) return behind;
    if (behind == nullptr) return before;
    if (before->priority_ >= behind->priority_) {
      before->right_ = Merge(before->right_, behind);
      Refresh(before);
      return before;
    }
    behind->left_ = Merge(before, behind->left_);
    Refresh(behind);
    return behind;
  }

  static void InsertBelow(Node** place, Node* node) {
    Node* const here = *place;
    if (here == nullptr || node->priority_ > here->priority_) {
      Split(here, *node, &node->left_, &node->right_);
      *place = node;
      Refresh(node);
      return;
    }
    InsertBelow(node->Before(*here) ? &here->left_ : &here->right_, node);
    Refresh(here);
  }

  static void RemoveBelow(Node** place, const Node* node) {
    Node* const here = *place;
    if (here == node) {
      *place = Merge(here->left_, here->right_);
      return;
    }
    RemoveBelow(node->Before(*here) ? &here->left_ : &here->right_, node);
    Refresh(here);
  }

  template <typename Accept>
  static Node* FindContaining(Node* node, uint64_t begin, uint64_t end, const Accept& accept) {
    if (node == nullptr || node->furthest_ < end) return nullptr;
    if (Node* const found = FindContaining(node->left_, begin, end, accept)) return found;
    if (node->begin_ > begin) return nullptr;
    if (node->end_ >= end && accept(node->value)) return node;
    return FindContaining(node->right_, begin, end, accept);
  }

  template <typename Visit>
  static void ForEachOverlapping(Node* node, uint64_t begin, uint64_t end, const Visit& visit) {
    if (node == nullptr || node->furthest_ <= begin) return;
    ForEachOverlapping(node->left_, begin, end, visit);
    if (node->begin_ >= end) return;
    if (node->end_ > begin) visit(*node);
    ForEachOverlapping(node->right_, begin, end, visit);
  }

  Node* root_ = nullptr;
  size_t size_ = 0;
  uint64_t next_number_ = 1;
};

}  // namespace tryst

#endif  // TRYST_VERBS_INTERVAL_TREE_H_
