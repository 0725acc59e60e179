// The rows: [weights | optimizer slots], side by side in slabs that never move, numbered in birth order.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory.h"

namespace elasticdl {

// What finding a row's address needs.
struct RowsHead {
  char* const* slabs;
  unsigned shift;  // log2 of the rows per slab
  uint32_t mask;   // rows per slab - 1
  size_t stride;   // bytes from one row to the next
  size_t dim;
  uint32_t* const* stamps;  // per slab: the step that last moved each row; null where rows have no age
};

inline char* row_address(const RowsHead& rows, uint32_t slot) {
  return rows.slabs[slot >> rows.shift] + static_cast<size_t>(slot & rows.mask) * rows.stride;
}

class Rows {
 public:
  Rows(size_t dim, size_t slots, bool aging);

  RowsHead head() const { return {slabs_.data(), shift_, mask_, stride_, dim_, aging_ ? stamps_.data() : nullptr}; }
  size_t size() const { return size_; }
  size_t dim() const { return dim_; }
  size_t width() const { return width_; }  // floats of a row: weights and slots
  size_t stride() const { return stride_; }
  bool aging() const { return aging_; }
  size_t rows_per_slab() const { return size_t{mask_} + 1; }

  void make_room();           // maps the slab of the next row where it is missing
  float* append(int64_t id);  // after make_room: the next row, not yet filled
  float* row(size_t slot) const { return reinterpret_cast<float*>(row_address(head(), static_cast<uint32_t>(slot))); }
  int64_t id(size_t slot) const { return ids_[slot >> shift_][slot & mask_]; }
  uint32_t& stamp(size_t slot) const { return stamps_[slot >> shift_][slot & mask_]; }  // where rows have an age
  void remove(size_t slot);  // the last row takes its place
  void trim();               // gives back what lies more than a slab beyond the last row
  size_t bytes() const;  // what has been touched

 private:
  size_t dim_, width_, stride_;
  unsigned shift_;
  uint32_t mask_;
  bool aging_;
  size_t size_ = 0;
  size_t peak_ = 0;  // rows ever in use of the slabs there are
  std::vector<Pages> pages_;  // per slab: rows, ids, stamps
  std::vector<char*> slabs_;
  std::vector<int64_t*> ids_;  // the id of each row: what an export reads
  std::vector<uint32_t*> stamps_;
};

}  // namespace elasticdl
