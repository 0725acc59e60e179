#include "changes.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace elasticdl {

void Bits::cover(size_t count) {
  const size_t words = (count + 63) / 64;
  if (words > words_.size()) words_.resize(std::max(words, words_.size() * 2));
}

void Bits::clear(size_t count) { words_.assign((count + 63) / 64, 0); }

void Bits::merge(const Bits& other) {
  for (size_t i = 0; i < other.words_.size(); ++i) words_[i] |= other.words_[i];
}

size_t Bits::next(size_t from) const {
  size_t word = from >> 6;
  if (word >= words_.size()) return kNoRow;
  uint64_t left = words_[word] & (~uint64_t{0} << (from & 63));
  while (left == 0) {
    if (++word == words_.size()) return kNoRow;
    left = words_[word];
  }
  return word * 64 + static_cast<size_t>(__builtin_ctzll(left));
}

size_t Bits::count() const {
  size_t total = 0;
  for (const uint64_t word : words_) total += static_cast<size_t>(__builtin_popcountll(word));
  return total;
}

void Changes::remove(size_t row, size_t last, int64_t id) {
  if (marked_) removed_.push_back(id);
  if (live_.has(last)) {
    live_.set(row);
  } else {
    live_.reset(row);
  }
  live_.reset(last);
}

void Changes::mark(uint32_t view, size_t rows) {
  Bits fresh = std::move(spare_);
  spare_ = Bits();
  fresh.clear(std::max<size_t>(rows, live_.size()));
  Mark& mark = marks_[view];
  mark.rows = std::exchange(live_, std::move(fresh));
  mark.removed = std::exchange(removed_, {});
  marked_ = true;
}

const Changes::Mark& Changes::at(uint32_t view) const {
  const auto found = marks_.find(view);
  if (found == marks_.end()) throw std::invalid_argument("view " + std::to_string(view) + " is not a marked one");
  return found->second;
}

void Changes::merge_back(uint32_t view) {
  const Mark& mark = at(view);
  removed_.reserve(removed_.size() + mark.removed.size());
  live_.merge(mark.rows);
  removed_.insert(removed_.end(), mark.removed.begin(), mark.removed.end());
}

void Changes::forget(uint32_t view) {
  const auto found = marks_.find(view);
  if (found == marks_.end()) return;
  spare_ = std::move(found->second.rows);
  marks_.erase(found);
}

size_t Changes::bytes() const {
  size_t total = live_.bytes() + spare_.bytes() + removed_.capacity() * sizeof(int64_t);
  for (const auto& [view, mark] : marks_) total += mark.rows.bytes() + mark.removed.capacity() * sizeof(int64_t);
  return total;
}

}  // namespace elasticdl
