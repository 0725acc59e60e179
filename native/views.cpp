#include "views.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace elasticdl {
namespace {

// About one row: with larger chunks the first pushes after a pin copy the whole table.
constexpr size_t kChunkBytes = 128;
constexpr size_t kAhead = 16;

size_t chunk_rows(size_t stride, size_t rows_per_slab) {
  return std::min(floor_power_of_two(std::max<size_t>(1, kChunkBytes / stride)), rows_per_slab);
}

}  // namespace

ChunkPool::ChunkPool(size_t chunk_bytes) : chunk_bytes_(chunk_bytes) {
  const size_t per_block = floor_power_of_two(std::max<size_t>(1, kHugePage / chunk_bytes));
  shift_ = log2_of_power(per_block);
  mask_ = static_cast<uint32_t>(per_block - 1);
}

uint32_t ChunkPool::take() {
  if (!free_.empty()) {
    const uint32_t chunk = free_.back();
    free_.pop_back();
    return chunk;
  }
  if ((used_ >> shift_) == blocks_.size()) blocks_.emplace_back((size_t{mask_} + 1) * chunk_bytes_, 0);
  return ++used_;
}

void ChunkPool::clear() {
  blocks_.clear();
  free_.clear();
  used_ = 0;
}

size_t ChunkPool::bytes() const {
  size_t total = 0;
  for (const Pages& block : blocks_) total += block.bytes();
  return total;
}

Views::Views(size_t stride, size_t rows_per_slab)
    : stride_(stride),
      chunk_shift_(log2_of_power(chunk_rows(stride, rows_per_slab))),
      pool_(chunk_rows(stride, rows_per_slab) * stride) {}

uint32_t Views::pin(size_t rows) {
  View view{last_ + 1, rows, Pages()};
  view.copies = Pages(std::max<size_t>(1, chunks(view)) * sizeof(uint32_t), kHugePage);
  views_.push_back(std::move(view));
  return ++last_;
}

void Views::release(uint32_t number) {
  const size_t position = position_of(number);
  const View& gone = views_[position];
  View* older = position == 0 ? nullptr : &views_[position - 1];
  const size_t older_chunks = older == nullptr ? 0 : chunks(*older);
  if (views_.size() > 1) {
    for (size_t chunk = 0; chunk < chunks(gone); ++chunk) {
      const uint32_t copy = gone.table()[chunk];
      if (copy == 0) continue;
      if (chunk < older_chunks && older->table()[chunk] == 0) {
        older->table()[chunk] = copy;  // the older view read it through this one
      } else {
        pool_.give(copy);
      }
    }
  }
  views_.erase(views_.begin() + static_cast<ptrdiff_t>(position));
  if (views_.empty()) pool_.clear();
}

void Views::protect(const RowsHead& rows, const uint32_t* slots, size_t n) {
  const View& newest = views_.back();
  uint32_t* table = newest.table();
  for (size_t i = 0; i < n; ++i) {
    if (i + 2 * kAhead < n && slots[i + 2 * kAhead] < newest.rows) {
      __builtin_prefetch(table + (slots[i + 2 * kAhead] >> chunk_shift_), 1);
    }
    if (i + kAhead < n) __builtin_prefetch(row_address(rows, slots[i + kAhead]));
    if (slots[i] >= newest.rows) continue;  // born since: the view does not have it
    const uint32_t chunk = slots[i] >> chunk_shift_;
    if (table[chunk] != 0) continue;
    const uint32_t copy = pool_.take();
    std::memcpy(pool_.address(copy), row_address(rows, chunk << chunk_shift_), stride_ << chunk_shift_);
    table[chunk] = copy;
  }
}

Views::Reader Views::reader(uint32_t view, const RowsHead& head, size_t live_rows) const {
  if (view == 0) return Reader(*this, head, live_rows, views_.size());
  const size_t position = position_of(view);
  return Reader(*this, head, views_[position].rows, position);
}

const float* Views::Reader::row(uint32_t slot) const {
  const uint32_t chunk = slot >> views_.chunk_shift_;
  for (size_t p = position_; p < views_.views_.size(); ++p) {
    const uint32_t copy = views_.views_[p].table()[chunk];
    if (copy == 0) continue;
    const size_t within = slot & ((uint32_t{1} << views_.chunk_shift_) - 1);
    return reinterpret_cast<const float*>(views_.pool_.address(copy) + within * views_.stride_);
  }
  return reinterpret_cast<const float*>(row_address(head_, slot));
}

size_t Views::position_of(uint32_t number) const {
  for (size_t p = 0; p < views_.size(); ++p) {
    if (views_[p].number == number) return p;
  }
  throw std::invalid_argument("view " + std::to_string(number) + " is not pinned (0 is the live table)");
}

size_t Views::bytes() const {
  size_t total = pool_.bytes();
  for (const View& view : views_) total += view.copies.bytes();
  return total;
}

}  // namespace elasticdl
