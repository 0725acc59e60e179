#include "rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace elasticdl {
namespace {

#if defined(ELASTICDL_SANITIZE)
constexpr size_t kSlabBytes = size_t{16} << 10;  // so that short tests cross many slabs
#else
constexpr size_t kSlabBytes = size_t{64} << 20;
#endif

// Small rows are padded to a power of two, larger ones to 32 bytes: so no row touches more cache lines than it must.
size_t stride_of(size_t row_bytes) {
  if (row_bytes > 32) return round_up(row_bytes, 32);
  size_t stride = 4;
  while (stride < row_bytes) stride *= 2;
  return stride;
}

// Bytes in use of a mapping filled from its front. The first huge page of a table is left on small pages.
size_t touched(size_t bytes, bool first) {
  if (first && bytes <= kHugePage) return round_up(bytes, kPage);
  return round_up(bytes, kHugePage);
}

}  // namespace

Rows::Rows(size_t dim, size_t slots, bool aging)
    : dim_(dim), width_(dim * (1 + slots)), stride_(stride_of(width_ * sizeof(float))), aging_(aging) {
  const size_t rows = floor_power_of_two(std::max<size_t>(1, kSlabBytes / stride_));
  shift_ = log2_of_power(rows);
  mask_ = static_cast<uint32_t>(rows - 1);
}

void Rows::make_room() {
  if ((size_ >> shift_) < slabs_.size()) return;
  // Huge pages from the start, but for the first 2 MiB of a table: a small table stays small.
  const size_t huge_from = slabs_.empty() ? kHugePage : 0;
  Pages slab(rows_per_slab() * stride_, huge_from);
  Pages ids(rows_per_slab() * sizeof(int64_t), huge_from);
  Pages stamps = aging_ ? Pages(rows_per_slab() * sizeof(uint32_t), huge_from) : Pages();
  pages_.reserve(pages_.size() + 3);
  slabs_.reserve(slabs_.size() + 1);
  ids_.reserve(ids_.size() + 1);
  stamps_.reserve(stamps_.size() + 1);
  slabs_.push_back(slab.data());
  ids_.push_back(reinterpret_cast<int64_t*>(ids.data()));
  stamps_.push_back(reinterpret_cast<uint32_t*>(stamps.data()));
  pages_.push_back(std::move(slab));
  pages_.push_back(std::move(ids));
  pages_.push_back(std::move(stamps));
}

float* Rows::append(int64_t id) {
  const size_t slot = size_++;
  peak_ = std::max(peak_, size_);
  ids_[slot >> shift_][slot & mask_] = id;
  return row(slot);
}

void Rows::remove(size_t slot) {
  const size_t last = --size_;
  if (slot == last) return;
  std::memcpy(row(slot), row(last), width_ * sizeof(float));
  ids_[slot >> shift_][slot & mask_] = id(last);
  if (aging_) stamp(slot) = stamp(last);
}

void Rows::trim() {
  const size_t keep = (size_ >> shift_) + 2;
  if (keep >= slabs_.size()) return;
  slabs_.resize(keep);
  ids_.resize(keep);
  stamps_.resize(keep);
  pages_.erase(pages_.begin() + static_cast<ptrdiff_t>(3 * keep), pages_.end());
  peak_ = std::min(peak_, keep << shift_);
}

size_t Rows::bytes() const {
  size_t total = 0;
  for (size_t slab = 0; slab < slabs_.size(); ++slab) {
    const size_t rows = std::min(peak_ - std::min(peak_, slab << shift_), rows_per_slab());
    total += touched(rows * stride_, slab == 0) + touched(rows * sizeof(int64_t), slab == 0);
    if (aging_) total += touched(rows * sizeof(uint32_t), slab == 0);
  }
  return total;
}

}  // namespace elasticdl
