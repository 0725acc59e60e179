#include "store.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace elasticdl {
namespace {

constexpr size_t kBlock = 8192;  // ids resolved before their rows are read: slots stay in the nearest cache
constexpr size_t kMaxBatch = size_t{1} << 30;  // keeps the merge table's index in 31 bits

}  // namespace

RowStore::RowStore(size_t dim, const Optimizer& optimizer, const Initializer& initializer, size_t capacity,
                   size_t max_rows)
    : optimizer_(optimizer),
      initializer_(initializer),
      max_rows_(std::min(max_rows, kMaxRows)),
      index_(capacity),
      rows_(dim, static_cast<size_t>(optimizer.slots)),
      views_(rows_.stride(), rows_.rows_per_slab()) {}

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
  initializer_.fill(id, dim(), row);
  optimizer_.start(row + dim(), dim());
  return slot;
}

uint32_t* RowStore::resolve_or_birth(const int64_t* ids, size_t n) {
  uint32_t* slots = slots_.at_least(n);
  for (size_t start = 0; start < n; start += kBlock) {
    const size_t stop = std::min(start + kBlock, n);
    if (passes().resolve(index_.head(), ids + start, stop - start, slots + start) == 0) continue;
    for (size_t i = start; i < stop; ++i) {
      if (slots[i] == kAbsent) slots[i] = slot_or_birth(ids[i]);
    }
  }
  return slots;
}

void RowStore::pull(const int64_t* ids, size_t n, float* out) {
  for (size_t start = 0; start < n; start += kBlock) {
    const size_t count = std::min(kBlock, n - start);
    const uint32_t* slots = resolve_or_birth(ids + start, count);
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

void RowStore::apply(const uint32_t* slots, const float* gradients, const float* const* sources, size_t n,
                     const Step& step) {
  if (!views_.empty()) views_.protect(rows_.head(), slots, n);
  RowsHead rows = rows_.head();
  rows.changed = changes_.words();
  passes().apply[static_cast<int>(step.rule)][step.prepared](rows, slots, gradients, sources, n, step);
}

void RowStore::push_unique(const int64_t* ids, const float* gradients, size_t n, double learning_rate, int64_t step) {
  const Step numbers = optimizer_.at(learning_rate, step);
  // Every row exists before the first one moves: a failed birth leaves no half-applied batch.
  const uint32_t* slots = resolve_or_birth(ids, n);
  apply(slots, gradients, nullptr, n, numbers);
}

size_t RowStore::push(const int64_t* ids, const float* gradients, size_t n, double learning_rate, int64_t step) {
  const Step numbers = optimizer_.at(learning_rate, step);
  if (n == 0) return 0;
  if (n > kMaxBatch) {
    throw std::invalid_argument("push: at most " + std::to_string(kMaxBatch) + " ids at once, got " +
                                std::to_string(n));
  }
  unsigned bits = 4;
  while ((size_t{1} << bits) < 2 * n) ++bits;
  const MergeScratch scratch{merge_table_.at_least(size_t{1} << bits), bits, sources_.at_least(n),
                             sums_.at_least((n / 2 + 1) * dim())};
  uint32_t* slots = resolve_or_birth(ids, n);
  const size_t distinct = passes().merge(slots, gradients, n, dim(), scratch);
  apply(slots, gradients, scratch.sources, distinct, numbers);
  return distinct;
}

void RowStore::export_rows(size_t start, size_t n, uint32_t view, int64_t* ids, float* out) const {
  const Reader reader = read(view);
  for (size_t i = 0; i < n; ++i) {
    ids[i] = rows_.id(start + i);
    std::memcpy(out + i * width(), reader.row(static_cast<uint32_t>(start + i)), width() * sizeof(float));
  }
}

void RowStore::import_rows(const int64_t* ids, const float* rows, size_t n) {
  const uint32_t* slots = resolve_or_birth(ids, n);
  if (!views_.empty()) views_.protect(rows_.head(), slots, n);
  for (size_t i = 0; i < n; ++i) {
    std::memcpy(rows_.row(slots[i]), rows + i * width(), width() * sizeof(float));
    changes_.set(slots[i]);
  }
}

void RowStore::release(uint32_t view) {
  views_.release(view, rows_.size());
  changes_.forget(view);
}

uint32_t RowStore::mark() {
  const uint32_t view = pin();
  changes_.mark(view, rows_.size());
  return view;
}

void RowStore::unmark(uint32_t view) {
  changes_.merge_back(view);
  release(view);
}

size_t RowStore::changed(uint32_t view) const { return changes_.at(view).rows.count(); }

std::vector<int64_t> RowStore::removed(uint32_t view) const {
  std::vector<int64_t> ids;
  const size_t rows = rows_in(view);
  for (const int64_t id : changes_.at(view).removed) {
    if (index_.find(id) >= rows) ids.push_back(id);  // else it was born again
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

std::vector<uint32_t> RowStore::changed_rows(uint32_t view, size_t start, size_t limit) const {
  std::vector<uint32_t> slots;
  const Bits& rows = changes_.at(view).rows;
  for (size_t row = rows.next(start); row != kNoRow && slots.size() < limit; row = rows.next(row + 1)) {
    slots.push_back(static_cast<uint32_t>(row));
  }
  return slots;
}

void RowStore::export_slots(const uint32_t* slots, size_t n, uint32_t view, int64_t* ids, float* out) const {
  const Reader reader = read(view);
  for (size_t i = 0; i < n; ++i) {
    ids[i] = rows_.id(slots[i]);
    std::memcpy(out + i * width(), reader.row(slots[i]), width() * sizeof(float));
  }
}

}  // namespace elasticdl
