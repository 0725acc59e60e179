// Rows that changed (one bit each) and ids that were removed between the marks of snapshots.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace elasticdl {

constexpr size_t kNoRow = ~size_t{0};

// One bit per row, or per chunk of rows.
class Bits {
 public:
  bool has(size_t at) const { return (words_[at >> 6] >> (at & 63)) & 1; }
  void set(size_t at) { words_[at >> 6] |= uint64_t{1} << (at & 63); }
  void reset(size_t at) { words_[at >> 6] &= ~(uint64_t{1} << (at & 63)); }
  const uint64_t* word(size_t at) const { return words_.data() + (at >> 6); }
  size_t size() const { return words_.size() * 64; }
  size_t bytes() const { return words_.capacity() * sizeof(uint64_t); }

  void cover(size_t count);             // room for that many; may throw, and then nothing changed
  void clear(size_t count);             // that many, all zero
  void merge(const Bits& other);        // those of the other too; it is not longer
  size_t next(size_t from) const;       // the first one set from here on, or kNoRow
  size_t count() const;

 private:
  std::vector<uint64_t> words_;
};

class Changes {
 public:
  // What happened between a mark and the one before it.
  struct Mark {
    Bits rows;
    std::vector<int64_t> removed;  // in order of removal, perhaps repeated, perhaps born again since
  };

  void cover(size_t rows) { live_.cover(rows); }
  void set(size_t row) { live_.set(row); }
  void prefetch(size_t row) const { __builtin_prefetch(live_.word(row), 1); }
  void remove(size_t row, size_t last, int64_t id);  // `last` takes the place of `row`

  void mark(uint32_t view, size_t rows);
  const Mark& at(uint32_t view) const;
  void merge_back(uint32_t view);  // the mark's rows count as changed again
  void forget(uint32_t view);      // where the view has a mark
  size_t bytes() const;

 private:
  Bits live_;
  std::vector<int64_t> removed_;
  std::map<uint32_t, Mark> marks_;
  Bits spare_;            // of the last mark forgotten: clearing it is faster than fresh memory
  bool marked_ = false;   // before the first mark removed ids are not recorded
};

}  // namespace elasticdl
