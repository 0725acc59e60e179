#include "views.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace elasticdl {
namespace {

// About one row: with larger chunks the first pushes after a pin copy the whole table.
constexpr size_t kChunkBytes = 128;
constexpr size_t kAhead = 16;
constexpr size_t kKept = 32;  // of the bytes of the rows, one in so many is kept for copies when no view is left

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
  return used_++;
}

void ChunkPool::clear(size_t keep_bytes) {
  const size_t keep = keep_bytes / ((size_t{mask_} + 1) * chunk_bytes_);
  if (keep < blocks_.size()) blocks_.erase(blocks_.begin() + static_cast<ptrdiff_t>(keep), blocks_.end());
  free_.clear();
  used_ = 0;
}

size_t ChunkPool::bytes() const {
  size_t total = 0;
  for (const Pages& block : blocks_) total += block.bytes();
  return total;
}

Views::Views(size_t stride, size_t rows_per_slab, bool aging)
    : stride_(stride),
      chunk_shift_(log2_of_power(chunk_rows(stride, rows_per_slab))),
      pool_((stride + (aging ? sizeof(uint32_t) : 0)) << chunk_shift_) {}

uint32_t Views::pin(size_t rows) {
  const size_t count = std::max<size_t>(1, chunks(rows));
  View view{last_ + 1, rows, std::move(spare_copied_), std::move(spare_copies_)};
  spare_copied_ = Bits();
  // What is kept of a view serves the next one as it is: only the bits say which entries mean something. Some room
  // is left for a table that grows; it costs nothing until it is touched.
  if (view.copies.bytes() < count * sizeof(uint32_t)) view.copies = Pages(count * sizeof(uint32_t) / 4 * 5, kHugePage);
  view.copied.clear(count);
  views_.push_back(std::move(view));
  return ++last_;
}

void Views::release(uint32_t number, size_t live_rows) {
  const size_t position = position_of(number);
  View& gone = views_[position];
  View* older = position == 0 ? nullptr : &views_[position - 1];
  const size_t older_chunks = older == nullptr ? 0 : chunks(older->rows);
  if (views_.size() > 1) {
    for (size_t chunk = gone.copied.next(0); chunk != kNoRow; chunk = gone.copied.next(chunk + 1)) {
      const uint32_t copy = gone.table()[chunk];
      if (chunk < older_chunks && !older->copied.has(chunk)) {
        older->table()[chunk] = copy;  // the older view read it through this one
        older->copied.set(chunk);
      } else {
        pool_.give(copy);
      }
    }
  }
  spare_copied_ = std::move(gone.copied);
  if (gone.copies.bytes() > spare_copies_.bytes()) std::swap(spare_copies_, gone.copies);
  views_.erase(views_.begin() + static_cast<ptrdiff_t>(position));
  if (views_.empty()) pool_.clear(live_rows * stride_ / kKept);
}

void Views::protect(const RowsHead& rows, const uint32_t* slots, size_t n) {
  View& newest = views_.back();
  uint32_t* table = newest.table();
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) {
      const uint32_t ahead = slots[i + kAhead];
      if (ahead < newest.rows && !newest.copied.has(ahead >> chunk_shift_)) {
        __builtin_prefetch(table + (ahead >> chunk_shift_), 1);
        __builtin_prefetch(row_address(rows, ahead));
      }
    }
    if (slots[i] >= newest.rows) continue;  // born since: the view does not have it
    const uint32_t chunk = slots[i] >> chunk_shift_;
    if (newest.copied.has(chunk)) continue;
    const uint32_t copy = pool_.take();
    const uint32_t first = chunk << chunk_shift_;
    std::memcpy(pool_.address(copy), row_address(rows, first), stride_ << chunk_shift_);
    if (rows.stamps != nullptr) {
      std::memcpy(pool_.address(copy) + (stride_ << chunk_shift_),
                  rows.stamps[first >> rows.shift] + (first & rows.mask), sizeof(uint32_t) << chunk_shift_);
    }
    table[chunk] = copy;
    newest.copied.set(chunk);
  }
}

Views::Reader Views::reader(uint32_t view, const RowsHead& head, size_t live_rows) const {
  if (view == 0) return Reader(*this, head, live_rows, views_.size());
  const size_t position = position_of(view);
  return Reader(*this, head, views_[position].rows, position);
}

const char* Views::Reader::copy(uint32_t slot) const {
  const uint32_t chunk = slot >> views_.chunk_shift_;
  for (size_t p = position_; p < views_.views_.size(); ++p) {
    const View& view = views_.views_[p];
    if (view.copied.has(chunk)) return views_.pool_.address(view.table()[chunk]);
  }
  return nullptr;
}

const float* Views::Reader::row(uint32_t slot) const {
  const char* held = copy(slot);
  return reinterpret_cast<const float*>(held != nullptr ? held + views_.within(slot) * views_.stride_
                                                        : row_address(head_, slot));
}

uint32_t Views::Reader::stamp(uint32_t slot) const {
  const char* held = copy(slot);
  if (held == nullptr) return head_.stamps[slot >> head_.shift][slot & head_.mask];
  uint32_t stamp;
  std::memcpy(&stamp, held + (views_.stride_ << views_.chunk_shift_) + views_.within(slot) * sizeof stamp, sizeof stamp);
  return stamp;
}

size_t Views::position_of(uint32_t number) const {
  for (size_t p = 0; p < views_.size(); ++p) {
    if (views_[p].number == number) return p;
  }
  throw std::invalid_argument("view " + std::to_string(number) + " is not pinned (0 is the live table)");
}

size_t Views::bytes() const {
  size_t total = pool_.bytes() + spare_copied_.bytes() + spare_copies_.bytes();
  for (const View& view : views_) total += view.copied.bytes() + view.copies.bytes();
  return total;
}

}  // namespace elasticdl
