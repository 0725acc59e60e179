// What goes in and out of a row store as a whole: exports, imports, marks.
#include <algorithm>
#include <cstring>

#include "store.h"

namespace elasticdl {

void RowStore::release(uint32_t view) {
  views_.release(view, rows_.size());
  changes_.forget(view);
}

uint32_t RowStore::mark() {
  const uint32_t view = pin();
  changes_.mark(view, rows_.size());
  return view;
}

void RowStore::unmark(uint32_t view) {
  changes_.merge_back(view);
  release(view);
}

std::vector<uint32_t> RowStore::changed_rows(uint32_t view, size_t start, size_t limit) const {
  std::vector<uint32_t> slots;
  const Bits& rows = changes_.at(view).rows;
  for (size_t row = rows.next(start); row != kNoRow && slots.size() < limit; row = rows.next(row + 1)) {
    slots.push_back(static_cast<uint32_t>(row));
  }
  return slots;
}

std::vector<int64_t> RowStore::removed(uint32_t view) const {
  std::vector<int64_t> ids;
  const size_t rows = rows_in(view);
  for (const int64_t id : changes_.at(view).removed) {
    if (index_.find(id) >= rows) ids.push_back(id);  // else it was born again
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

void RowStore::write_row(const Reader& reader, size_t slot, float* out) const {
  std::memcpy(out, reader.row(static_cast<uint32_t>(slot)), rows_.width() * sizeof(float));
  if (!policy_.aging) return;
  const uint32_t stamp = reader.stamp(static_cast<uint32_t>(slot));
  std::memcpy(out + rows_.width(), &stamp, sizeof stamp);
}

void RowStore::export_rows(size_t start, size_t n, uint32_t view, int64_t* ids, float* out) const {
  const Reader reader = read(view);
  for (size_t i = 0; i < n; ++i) {
    ids[i] = rows_.id(start + i);
    write_row(reader, start + i, out + i * columns());
  }
}

void RowStore::export_slots(const uint32_t* slots, size_t n, uint32_t view, int64_t* ids, float* out) const {
  const Reader reader = read(view);
  for (size_t i = 0; i < n; ++i) {
    ids[i] = rows_.id(slots[i]);
    write_row(reader, slots[i], out + i * columns());
  }
}

void RowStore::import_rows(const int64_t* ids, const float* rows, size_t n) {
  uint32_t* slots = slots_.at_least(n);
  resolve_or_birth(ids, n, slots);
  before_writing(slots, n);
  for (size_t i = 0; i < n; ++i) {
    const float* from = rows + i * columns();
    std::memcpy(rows_.row(slots[i]), from, rows_.width() * sizeof(float));
    if (!policy_.aging) continue;
    std::memcpy(&rows_.stamp(slots[i]), from + rows_.width(), sizeof(uint32_t));
    newest_stamp_ = std::max(newest_stamp_, rows_.stamp(slots[i]));
  }
}

}  // namespace elasticdl
