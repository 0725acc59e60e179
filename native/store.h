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

// What a table asks for beyond its rows.
struct Policy {
  uint32_t admit_after = 0;  // an id gets its row at its n-th push; 0: at the first pull or push
  bool aging = false;        // rows know the step that last moved them, and can be evicted
};

class RowStore {
 public:
  RowStore(size_t dim, const Optimizer& optimizer, const Initializer& initializer, size_t capacity, size_t max_rows,
           const Policy& policy);

  void pull(const int64_t* ids, size_t n, float* out);
  void peek(const int64_t* ids, size_t n, float* out, uint32_t view);
  size_t push(const int64_t* ids, const float* gradients, size_t n, double learning_rate, int64_t step);
  void push_unique(const int64_t* ids, const float* gradients, size_t n, double learning_rate, int64_t step);

  // Removes rows that no push moved at `before_step` or later, at most `limit`, and none while a view is pinned. The
  // next call continues a sweep that reached the limit.
  size_t evict(int64_t before_step, size_t limit);
  size_t remove(const int64_t* ids, size_t n);  // those that have a row; not while a view is pinned
  RowStore* candidates() const { return candidates_.get(); }  // number of pushes of each id without a row, or null

  // View 0 is the live table.
  uint32_t pin() { return views_.pin(rows_.size()); }
  void release(uint32_t view);

  // A mark is a view that also takes what changed since the mark before it.
  uint32_t mark();
  void unmark(uint32_t view);  // as if it had not been made
  size_t changed(uint32_t view) const { return changes_.at(view).rows.count(); }
  size_t next_changed(uint32_t view, size_t start) const { return changes_.at(view).rows.next(start); }  // or kNoRow
  std::vector<uint32_t> changed_rows(uint32_t view, size_t start, size_t limit) const;
  std::vector<int64_t> removed(uint32_t view) const;  // ids that are not in the view, ascending

  size_t rows_in(uint32_t view) const { return read(view).rows(); }
  void export_rows(size_t start, size_t n, uint32_t view, int64_t* ids, float* out) const;
  void export_slots(const uint32_t* slots, size_t n, uint32_t view, int64_t* ids, float* out) const;
  void import_rows(const int64_t* ids, const float* rows, size_t n);

  size_t dim() const { return rows_.dim(); }
  size_t columns() const { return rows_.width() + (rows_.aging() ? 1 : 0); }  // of an exported row; the stamp is last
  size_t size() const { return rows_.size(); }
  size_t bytes() const;
  std::string describe() const;  // rows and bytes, for error messages

  std::atomic<bool> busy{false};  // catches a second thread; see module.cpp

 private:
  using Reader = Views::Reader;

  Reader read(uint32_t view) const { return views_.reader(view, rows_.head(), rows_.size()); }
  uint32_t slot_or_birth(int64_t id);
  void resolve_or_birth(const int64_t* ids, size_t n, uint32_t* slots);
  void resolve_or_admit(const int64_t* ids, size_t n, uint32_t* slots, uint32_t stamp);
  size_t push_distinct(const int64_t* ids, const float* gradients, const float** sources, size_t n,
                       double learning_rate, int64_t step);
  void admit(const int64_t* ids, size_t n, uint32_t* slots, uint32_t stamp);
  void settle_candidates();
  uint32_t stamp_at(int64_t step);
  void before_writing(const uint32_t* slots, size_t n);
  void apply(const uint32_t* slots, const float* gradients, const float* const* sources, size_t n, const Step& step,
             uint32_t stamp);
  void remove_slot(size_t slot);
  void write_row(const Reader& reader, size_t slot, float* out) const;

  Optimizer optimizer_;
  Initializer initializer_;
  size_t max_rows_;
  Policy policy_;
  Index index_;
  Rows rows_;
  Views views_;
  Changes changes_;
  std::unique_ptr<RowStore> candidates_;
  std::vector<int64_t> admitted_;  // ids that got a row and are candidates still, with a count of 0
  uint32_t newest_stamp_ = 0;      // of any push: the age of rows that a pull brings
  size_t sweep_ = 0;               // the evictor's place, when it stopped half way
  Scratch<uint32_t> slots_;
  Scratch<int64_t> absent_;
  Scratch<uint64_t> merge_table_;
  Scratch<int64_t> distinct_;
  Scratch<const float*> sources_;
  Scratch<float> sums_;
};

constexpr size_t kBlock = 8192;  // ids resolved before their rows are read: slots stay in the nearest cache

}  // namespace elasticdl
