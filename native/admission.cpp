// Which ids get a row, and which rows are removed.
#include <algorithm>
#include <stdexcept>

#include "store.h"

namespace elasticdl {
namespace {

#if defined(ELASTICDL_SANITIZE)
constexpr size_t kCandidates = 2000;  // so that short tests get there
#else
constexpr size_t kCandidates = size_t{1} << 20;
#endif

}  // namespace

void RowStore::resolve_or_admit(const int64_t* ids, size_t n, uint32_t* slots, uint32_t stamp) {
  if (candidates_ == nullptr) return resolve_or_birth(ids, n, slots);
  for (size_t start = 0; start < n; start += kBlock) {
    const size_t count = std::min(kBlock, n - start);
    if (passes().resolve(index_.head(), ids + start, count, slots + start) != 0) {
      admit(ids + start, count, slots + start, stamp);
    }
  }
  settle_candidates();
}

// Counts the ids without a row, each once per step; ids that were pushed often enough get one. The counts are rows of
// a store, with views and marks, and are saved like other rows.
void RowStore::admit(const int64_t* ids, size_t n, uint32_t* slots, uint32_t stamp) {
  int64_t* absent = absent_.at_least(kBlock);
  size_t count = 0;
  for (size_t i = 0; i < n; ++i) {
    if (slots[i] == kAbsent) absent[count++] = ids[i];
  }
  RowStore& counts = *candidates_;
  uint32_t* places = counts.slots_.at_least(kBlock);
  counts.resolve_or_birth(absent, count, places);
  counts.before_writing(places, count);
  admitted_.reserve(admitted_.size() + count);
  for (size_t i = 0; i < n; ++i) {
    if (slots[i] != kAbsent) continue;
    const uint32_t place = *places++;
    float& seen = *counts.rows_.row(place);
    if (counts.rows_.stamp(place) == stamp) {  // counted by this push already, or just born
      slots[i] = index_.find(ids[i]);
      if (slots[i] != kAbsent || seen != 0) continue;
    }
    if (seen + 1 >= static_cast<float>(policy_.admit_after)) {
      slots[i] = slot_or_birth(ids[i]);
      admitted_.push_back(ids[i]);
      seen = 0;
    } else {
      seen += 1;
    }
    counts.rows_.stamp(place) = stamp;
  }
}

// Admitted ids stop being candidates. If there are too many others, every count falls by one, and ids at zero are
// dropped: an id is then undercounted by at most one in as many pushed ids as there may be candidates (Misra and
// Gries, 1982). Removal has to wait while a snapshot of the counts is being taken.
void RowStore::settle_candidates() {
  RowStore& counts = *candidates_;
  if (!counts.views_.empty()) return;
  for (const int64_t id : admitted_) {
    const uint32_t place = counts.index_.find(id);
    if (place != kAbsent && *counts.rows_.row(place) == 0) counts.remove_slot(place);
  }
  admitted_.clear();
  if (counts.size() <= std::max(kCandidates, size())) return;
  for (size_t place = counts.size(); place-- > 0;) {
    float& seen = *counts.rows_.row(place);
    seen -= 1;
    if (seen > 0) {
      counts.changes_.set(place);
    } else {
      counts.remove_slot(place);
    }
  }
  counts.rows_.trim();
}

void RowStore::remove_slot(size_t slot) {
  const size_t last = rows_.size() - 1;
  const int64_t id = rows_.id(slot);
  changes_.remove(slot, last, id);
  index_.erase(id);
  if (slot != last) index_.move(rows_.id(last), static_cast<uint32_t>(slot));
  rows_.remove(slot);
}

size_t RowStore::remove(const int64_t* ids, size_t n) {
  if (!views_.empty()) throw std::invalid_argument("remove: a view is pinned");
  size_t removed = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t slot = index_.find(ids[i]);
    if (slot == kAbsent) continue;
    remove_slot(slot);
    ++removed;
  }
  rows_.trim();
  return removed;
}

// From the end: a row that takes the place of a removed one was checked before.
size_t RowStore::evict(int64_t before_step, size_t limit) {
  if (!policy_.aging) throw std::invalid_argument("evict: the rows of this store have no age");
  if (!views_.empty()) return 0;
  before_step = std::min<int64_t>(before_step, 0xffffffff);  // where stamps end, rows stop ageing
  size_t removed = 0;
  size_t at = sweep_ != 0 ? std::min(sweep_, rows_.size()) : rows_.size();
  while (at > 0 && removed < limit) {
    --at;
    if (static_cast<int64_t>(rows_.stamp(at)) >= before_step) continue;
    remove_slot(at);
    ++removed;
  }
  sweep_ = at;
  rows_.trim();
  return removed;
}

}  // namespace elasticdl
