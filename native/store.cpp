#include "store.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace elasticdl {
namespace {

constexpr size_t kMaxBatch = size_t{1} << 30;  // keeps the merge table's index in 31 bits

}  // namespace

RowStore::RowStore(size_t dim, const Optimizer& optimizer, const Initializer& initializer, size_t capacity,
                   size_t max_rows, const Policy& policy)
    : optimizer_(optimizer),
      initializer_(initializer),
      max_rows_(std::min(max_rows, kMaxRows)),
      policy_(policy),
      index_(capacity),
      rows_(dim, static_cast<size_t>(optimizer.slots), policy.aging),
      views_(rows_.stride(), rows_.rows_per_slab(), policy.aging) {
  if (policy.admit_after < 2) return;
  Optimizer none = optimizer;  // counts are not moved by one
  none.slots = 0;
  candidates_ = std::make_unique<RowStore>(1, none, Initializer("constant", 0, 0, 0), 0, kMaxRows, Policy{0, true});
}

size_t RowStore::bytes() const {
  return index_.bytes() + rows_.bytes() + views_.bytes() + changes_.bytes() +
         (candidates_ != nullptr ? candidates_->bytes() : 0);
}

std::string RowStore::describe() const {
  return "a row store of " + std::to_string(size()) + " rows of " + std::to_string(rows_.stride()) + " bytes, " +
         std::to_string(bytes()) + " bytes in all";
}

// The slot of an id, making its row where it is absent. Either the whole birth happens or nothing.
uint32_t RowStore::slot_or_birth(int64_t id) {
  const uint32_t found = index_.find(id);
  if (found != kAbsent) return found;
  if (rows_.size() >= max_rows_) {
    throw std::overflow_error("no room for id " + std::to_string(id) + ": the store holds its limit of " +
                              std::to_string(max_rows_) + " rows");
  }
  rows_.make_room();
  changes_.cover(rows_.size() + 1);
  const uint32_t slot = static_cast<uint32_t>(rows_.size());
  index_.insert(id, slot);
  float* row = rows_.append(id);
  changes_.set(slot);
  if (policy_.aging) rows_.stamp(slot) = newest_stamp_;
  initializer_.fill(id, dim(), row);
  optimizer_.start(row + dim(), dim());
  return slot;
}

void RowStore::resolve_or_birth(const int64_t* ids, size_t n, uint32_t* slots) {
  for (size_t start = 0; start < n; start += kBlock) {
    const size_t stop = std::min(start + kBlock, n);
    if (passes().resolve(index_.head(), ids + start, stop - start, slots + start) == 0) continue;
    for (size_t i = start; i < stop; ++i) {
      if (slots[i] == kAbsent) slots[i] = slot_or_birth(ids[i]);
    }
  }
}

void RowStore::pull(const int64_t* ids, size_t n, float* out) {
  if (policy_.admit_after != 0) return peek(ids, n, out, 0);
  uint32_t* slots = slots_.at_least(std::min(n, kBlock));
  for (size_t start = 0; start < n; start += kBlock) {
    const size_t count = std::min(kBlock, n - start);
    resolve_or_birth(ids + start, count, slots);
    passes().gather(rows_.head(), slots, count, out + start * dim());
  }
}

void RowStore::peek(const int64_t* ids, size_t n, float* out, uint32_t view) {
  uint32_t* slots = slots_.at_least(std::min(n, kBlock));
  const Reader reader = read(view);
  for (size_t start = 0; start < n; start += kBlock) {
    const size_t count = std::min(kBlock, n - start);
    const size_t absent = passes().resolve(index_.head(), ids + start, count, slots);
    float* to = out + start * dim();
    if (view == 0 && absent == 0) {
      passes().gather(rows_.head(), slots, count, to);
      continue;
    }
    for (size_t i = 0; i < count; ++i, to += dim()) {
      if (slots[i] < reader.rows()) {
        std::memcpy(to, reader.row(slots[i]), dim() * sizeof(float));
      } else {  // absent, or born after the pin
        initializer_.fill(ids[start + i], dim(), to);
      }
    }
  }
}

uint32_t RowStore::stamp_at(int64_t step) {
  const uint32_t stamp = static_cast<uint32_t>(std::min<int64_t>(step, 0xffffffff));
  newest_stamp_ = std::max(newest_stamp_, stamp);
  return stamp;
}

void RowStore::before_writing(const uint32_t* slots, size_t n) {
  if (!views_.empty()) views_.protect(rows_.head(), slots, n);
  // A loop of its own: in the one that moves the rows these writes cost more.
  constexpr size_t kAhead = 32;
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) changes_.prefetch(slots[i + kAhead]);
    changes_.set(slots[i]);
  }
}

void RowStore::apply(const uint32_t* slots, const float* gradients, const float* const* sources, size_t n,
                     const Step& step, uint32_t stamp) {
  before_writing(slots, n);
  passes().apply[static_cast<int>(step.rule)][step.prepared](rows_.head(), slots, gradients, sources, n, step);
  if (!policy_.aging) return;
  for (size_t i = 0; i < n; ++i) rows_.stamp(slots[i]) = stamp;
}

void RowStore::push_unique(const int64_t* ids, const float* gradients, size_t n, double learning_rate, int64_t step) {
  push_distinct(ids, gradients, nullptr, n, learning_rate, step);
}

// Gradient i is sources[i], or row i of `gradients` when sources is null. Returns how many rows it moved.
size_t RowStore::push_distinct(const int64_t* ids, const float* gradients, const float** sources, size_t n,
                               double learning_rate, int64_t step) {
  const Step numbers = optimizer_.at(learning_rate, step);
  const uint32_t stamp = stamp_at(step);
  uint32_t* slots = slots_.at_least(n);
  const float** kept = sources != nullptr || policy_.admit_after < 2 ? sources : sources_.at_least(n);
  // Every row exists before the first one moves: a failed birth leaves no half-applied batch.
  resolve_or_admit(ids, n, slots, stamp);
  size_t moved = n;
  if (policy_.admit_after > 1) {
    moved = 0;
    for (size_t i = 0; i < n; ++i) {
      if (slots[i] == kAbsent) continue;
      kept[moved] = sources != nullptr ? sources[i] : gradients + i * dim();
      slots[moved++] = slots[i];
    }
  }
  apply(slots, gradients, kept, moved, numbers, stamp);
  return moved;
}

size_t RowStore::push(const int64_t* ids, const float* gradients, size_t n, double learning_rate, int64_t step) {
  if (n > kMaxBatch) {
    throw std::invalid_argument("push: at most " + std::to_string(kMaxBatch) + " ids at once, got " +
                                std::to_string(n));
  }
  unsigned bits = 4;
  while ((size_t{1} << bits) < 2 * n) ++bits;
  const MergeScratch scratch{merge_table_.at_least(size_t{1} << bits), bits, distinct_.at_least(n),
                             sources_.at_least(n), sums_.at_least((n / 2 + 1) * dim())};
  const size_t distinct = passes().merge(ids, gradients, n, dim(), scratch);
  return push_distinct(scratch.ids, gradients, scratch.sources, distinct, learning_rate, step);
}

}  // namespace elasticdl
