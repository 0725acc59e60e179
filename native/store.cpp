#include "store.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace elasticdl {
namespace {

constexpr size_t kBlock = 8192;              // ids resolved before their rows are read: the slots stay in the nearest cache
constexpr size_t kMaxBatch = size_t{1} << 30;  // keeps the merge table's positions in 31 bits

}  // namespace

RowStore::RowStore(size_t dim, const Optimizer& optimizer, const Initializer& initializer, size_t capacity, size_t max_rows)
    : optimizer_(optimizer),
      initializer_(initializer),
      max_rows_(std::min(max_rows, kMaxRows)),
      index_(capacity),
      rows_(dim, static_cast<size_t>(optimizer.slots)),
      views_(rows_.stride(), rows_.rows_per_slab()) {}

std::string RowStore::describe() const {
  return "a row store of " + std::to_string(size()) + " rows of " + std::to_string(rows_.stride()) + " bytes, " + std::to_string(bytes()) + " bytes in all";
}

// The slot of an id, making its row where it is absent. Either the whole birth happens or nothing.
uint32_t RowStore::slot_or_birth(int64_t id, bool* born, bool fill) {
  const uint32_t found = index_.find(id);
  *born = found == kAbsent;
  if (found != kAbsent) return found;
  if (rows_.size() >= max_rows_) {
    throw std::overflow_error("no room for id " + std::to_string(id) + ": the store holds its limit of " + std::to_string(max_rows_) + " rows");
  }
  rows_.make_room();
  const uint32_t slot = static_cast<uint32_t>(rows_.size());
  index_.insert(id, slot);
  float* row = rows_.append(id);
  if (fill) {
    initializer_.fill(id, dim(), row);
    std::fill(row + dim(), row + width(), optimizer_.slot_start);
  }
  return slot;
}

void RowStore::birth_absent(const int64_t* ids, size_t n, uint32_t* slots) {
  bool born;
  for (size_t i = 0; i < n; ++i) {
    if (slots[i] == kAbsent) slots[i] = slot_or_birth(ids[i], &born, true);
  }
}

uint32_t* RowStore::resolve_or_birth(const int64_t* ids, size_t n) {
  uint32_t* slots = slots_.at_least(n);
  for (size_t start = 0; start < n; start += kBlock) {
    const size_t count = std::min(kBlock, n - start);
    if (passes().resolve(index_.head(), ids + start, count, slots + start) != 0) birth_absent(ids + start, count, slots + start);
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
  const size_t rows = rows_in(view);
  for (size_t start = 0; start < n; start += kBlock) {
    const size_t count = std::min(kBlock, n - start);
    const size_t absent = passes().resolve(index_.head(), ids + start, count, slots);
    float* to = out + start * dim();
    if (view == 0 && absent == 0) {
      passes().gather(rows_.head(), slots, count, to);
      continue;
    }
    for (size_t i = 0; i < count; ++i, to += dim()) {
      if (slots[i] >= rows) {  // absent, or born after the pin
        initializer_.fill(ids[start + i], dim(), to);
      } else {
        const float* row = view == 0 ? rows_.row(slots[i]) : views_.reader(view, rows_.head()).row(slots[i]);
        std::memcpy(to, row, dim() * sizeof(float));
      }
    }
  }
}

void RowStore::apply(const uint32_t* slots, const float* gradients, const float* const* sources, size_t n, const Step& step) {
  if (!views_.empty()) views_.protect(rows_.head(), slots, n);
  passes().apply[static_cast<int>(optimizer_.rule)](rows_.head(), slots, gradients, sources, n, step);
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
  if (n > kMaxBatch) throw std::invalid_argument("push: at most " + std::to_string(kMaxBatch) + " ids at once, got " + std::to_string(n));
  unsigned bits = 4;
  while ((size_t{1} << bits) < 2 * n) ++bits;
  MergeScratch scratch{merge_table_.at_least(size_t{1} << bits), bits, sources_.at_least(n), sums_.at_least((n / 2 + 1) * dim())};
  uint32_t* slots = resolve_or_birth(ids, n);
  const size_t distinct = passes().merge(slots, gradients, n, dim(), scratch);
  apply(slots, gradients, scratch.sources, distinct, numbers);
  return distinct;
}

size_t RowStore::rows_in(uint32_t view) const { return view == 0 ? size() : views_.reader(view, rows_.head()).rows(); }

void RowStore::export_rows(size_t start, size_t n, uint32_t view, int64_t* ids, float* out) const {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t slot = static_cast<uint32_t>(start + i);
    const float* row = view == 0 ? rows_.row(slot) : views_.reader(view, rows_.head()).row(slot);
    ids[i] = rows_.id(slot);
    std::memcpy(out + i * width(), row, width() * sizeof(float));
  }
}

void RowStore::import_rows(const int64_t* ids, const float* rows, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    bool born;
    const uint32_t slot = slot_or_birth(ids[i], &born, false);
    if (!born && !views_.empty()) views_.protect(rows_.head(), &slot, 1);
    std::memcpy(rows_.row(slot), rows + i * width(), width() * sizeof(float));
  }
}

}  // namespace elasticdl
