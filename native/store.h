// The row store: index, rows and views together. One thread owns a store; there are no locks.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "changes.h"
#include "index.h"
#include "initializer.h"
#include "optimizer.h"
#include "passes.h"
#include "rows.h"
#include "views.h"

namespace elasticdl {

constexpr size_t kMaxRows = kAbsent;  // slots 0 .. 2^32 - 2
constexpr size_t kMaxDim = size_t{1} << 20;

// Scratch memory that grows and is not cleared.
template <class T>
class Scratch {
 public:
  T* at_least(size_t n) {
    if (n > size_) {
      data_.reset();
      size_ = 0;
      data_.reset(new T[n]);
      size_ = n;
    }
    return data_.get();
  }

 private:
  std::unique_ptr<T[]> data_;
  size_t size_ = 0;
};

class RowStore {
 public:
  RowStore(size_t dim, const Optimizer& optimizer, const Initializer& initializer, size_t capacity, size_t max_rows);

  void pull(const int64_t* ids, size_t n, float* out);
  void peek(const int64_t* ids, size_t n, float* out, uint32_t view);
  size_t push(const int64_t* ids, const float* gradients, size_t n, double learning_rate, int64_t step);
  void push_unique(const int64_t* ids, const float* gradients, size_t n, double learning_rate, int64_t step);

  // View 0 is the live table.
  uint32_t pin() { return views_.pin(rows_.size()); }
  void release(uint32_t view);

  // A mark is a view that also takes what changed since the mark before it.
  uint32_t mark();
  void unmark(uint32_t view);  // as if it had not been made
  size_t changed(uint32_t view) const;
  std::vector<int64_t> removed(uint32_t view) const;  // ids that are not in the view, ascending
  // Row numbers of at most `limit` changed rows from `start` on; the first is next_changed(view, start).
  size_t next_changed(uint32_t view, size_t start) const { return changes_.at(view).rows.next(start); }
  std::vector<uint32_t> changed_rows(uint32_t view, size_t start, size_t limit) const;
  void export_slots(const uint32_t* slots, size_t n, uint32_t view, int64_t* ids, float* out) const;

  size_t rows_in(uint32_t view) const { return read(view).rows(); }
  void export_rows(size_t start, size_t n, uint32_t view, int64_t* ids, float* out) const;
  void import_rows(const int64_t* ids, const float* rows, size_t n);

  size_t dim() const { return rows_.dim(); }
  size_t width() const { return rows_.width(); }
  size_t size() const { return rows_.size(); }
  size_t bytes() const { return index_.bytes() + rows_.bytes() + views_.bytes() + changes_.bytes(); }
  std::string describe() const;  // rows and bytes, for error messages

  std::atomic<bool> busy{false};  // catches a second thread; see module.cpp

 private:
  using Reader = Views::Reader;

  Reader read(uint32_t view) const { return views_.reader(view, rows_.head(), rows_.size()); }
  uint32_t slot_or_birth(int64_t id);
  uint32_t* resolve_or_birth(const int64_t* ids, size_t n);
  void apply(const uint32_t* slots, const float* gradients, const float* const* sources, size_t n, const Step& step);

  Optimizer optimizer_;
  Initializer initializer_;
  size_t max_rows_;
  Index index_;
  Rows rows_;
  Views views_;
  Changes changes_;
  Scratch<uint32_t> slots_;
  Scratch<uint64_t> merge_table_;
  Scratch<const float*> sources_;
  Scratch<float> sums_;
};

}  // namespace elasticdl
