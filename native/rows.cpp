#include "rows.h"

#include <algorithm>

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

Rows::Rows(size_t dim, size_t slots)
    : dim_(dim), width_(dim * (1 + slots)), stride_(stride_of(width_ * sizeof(float))) {
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
  pages_.reserve(pages_.size() + 2);
  slabs_.reserve(slabs_.size() + 1);
  ids_.reserve(ids_.size() + 1);
  slabs_.push_back(slab.data());
  ids_.push_back(reinterpret_cast<int64_t*>(ids.data()));
  pages_.push_back(std::move(slab));
  pages_.push_back(std::move(ids));
}

float* Rows::append(int64_t id) {
  const size_t slot = size_++;
  ids_[slot >> shift_][slot & mask_] = id;
  return row(slot);
}

size_t Rows::bytes() const {
  size_t total = 0;
  for (size_t slab = 0; slab < slabs_.size(); ++slab) {
    const size_t rows = std::min(size_ - std::min(size_, slab << shift_), rows_per_slab());
    total += touched(rows * stride_, slab == 0) + touched(rows * sizeof(int64_t), slab == 0);
  }
  return total;
}

}  // namespace elasticdl
