#include "passes.h"

#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>

namespace elasticdl {
namespace {

const Passes* best() {
  if (const Passes* found = avx512_passes()) return found;
  if (const Passes* found = avx2_passes()) return found;
  return scalar_passes();
}

std::atomic<const Passes*>& chosen() {
  static std::atomic<const Passes*> value{best()};
  return value;
}

}  // namespace

const Passes& passes() { return *chosen().load(std::memory_order_relaxed); }

void choose_passes(const char* name) {
  if (std::strcmp(name, "best") == 0) {
    chosen() = best();
    return;
  }
  for (const Passes* candidate : {scalar_passes(), avx2_passes(), avx512_passes()}) {
    if (candidate != nullptr && std::strcmp(candidate->name, name) == 0) {
      chosen() = candidate;
      return;
    }
  }
  throw std::invalid_argument(
      std::string("isa: expected best, scalar, or what this processor has of avx2 and avx512, got '") + name + "'");
}

}  // namespace elasticdl
