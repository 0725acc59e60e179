// Pinned views: a table as it was at some moment, kept by copying chunks of rows before they are first overwritten.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "changes.h"
#include "memory.h"
#include "rows.h"

namespace elasticdl {

// Equal-sized copies of chunks (rows, then their stamps where they have any), in blocks of which some are kept from one view to the next: fresh memory is dear.
class ChunkPool {
 public:
  explicit ChunkPool(size_t chunk_bytes);
  uint32_t take();
  void give(uint32_t chunk) { free_.push_back(chunk); }
  void clear(size_t keep_bytes);  // frees all copies; blocks beyond so many bytes go back to the system
  char* address(uint32_t chunk) const {
    return blocks_[chunk >> shift_].data() + static_cast<size_t>(chunk & mask_) * chunk_bytes_;
  }
  size_t bytes() const;

 private:
  size_t chunk_bytes_;
  unsigned shift_;
  uint32_t mask_;
  uint32_t used_ = 0;
  std::vector<Pages> blocks_;
  std::vector<uint32_t> free_;
};

// Only the newest view receives copies: an older one that lacks a chunk finds it in the next newer view that has it,
// or in the table itself if it was not written since.
class Views {
 public:
  Views(size_t stride, size_t rows_per_slab, bool aging);

  uint32_t pin(size_t rows);
  void release(uint32_t view, size_t live_rows);
  bool empty() const { return views_.empty(); }
  void protect(const RowsHead& rows, const uint32_t* slots, size_t n);  // before rows are written
  size_t bytes() const;

  // A view to read from, or the live table. Its rows are those below `rows`, in birth order.
  class Reader {
   public:
    Reader(const Views& views, const RowsHead& head, size_t rows, size_t position)
        : views_(views), head_(head), rows_(rows), position_(position) {}
    size_t rows() const { return rows_; }
    const float* row(uint32_t slot) const;
    uint32_t stamp(uint32_t slot) const;  // where rows have an age

   private:
    const char* copy(uint32_t slot) const;  // of its chunk, or null

    const Views& views_;
    RowsHead head_;
    size_t rows_;
    size_t position_;  // among the views; past them for the live table
  };
  Reader reader(uint32_t view, const RowsHead& head, size_t live_rows) const;

 private:
  struct View {
    uint32_t number;
    size_t rows;
    Bits copied;   // chunks of which it has a copy
    Pages copies;  // chunk -> number of its copy, where it has one
    uint32_t* table() const { return reinterpret_cast<uint32_t*>(copies.data()); }
  };

  size_t position_of(uint32_t view) const;
  size_t within(uint32_t slot) const { return slot & ((uint32_t{1} << chunk_shift_) - 1); }
  size_t chunks(size_t rows) const { return (rows + (size_t{1} << chunk_shift_) - 1) >> chunk_shift_; }

  size_t stride_;
  unsigned chunk_shift_;
  ChunkPool pool_;
  std::vector<View> views_;  // oldest first
  // Of a released view, for the next one.
  Bits spare_copied_;
  Pages spare_copies_;
  uint32_t last_ = 0;
};

}  // namespace elasticdl
