#include "memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <utility>

namespace elasticdl {

#if defined(ELASTICDL_SANITIZE)

// From the heap, so that the address sanitizer sees a step past either end.
Pages::Pages(size_t bytes, size_t) : data_(static_cast<char*>(std::aligned_alloc(kPage, round_up(bytes, kPage)))) {
  bytes_ = round_up(bytes, kPage);
  if (data_ == nullptr) throw OutOfMemory("the system refused " + std::to_string(bytes_) + " bytes");
  std::memset(data_, 0, bytes_);
}

Pages::~Pages() { std::free(data_); }

#else

Pages::Pages(size_t bytes, size_t huge_from) {
  bytes = round_up(bytes, kPage);
  const size_t alignment = bytes >= kHugePage ? kHugePage : kPage;
  const size_t spare = alignment - kPage;
  void* mapped =
      mmap(nullptr, bytes + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw OutOfMemory("the system refused " + std::to_string(bytes) + " bytes");
  // Cut the mapping down to its aligned part.
  char* start = static_cast<char*>(mapped);
  char* aligned = reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(start), alignment));
  const size_t head = static_cast<size_t>(aligned - start);
  if (head != 0) munmap(start, head);
  if (spare != head) munmap(aligned + bytes, spare - head);
#ifdef MADV_HUGEPAGE
  if (huge_from < bytes)
    madvise(aligned + huge_from, bytes - huge_from, MADV_HUGEPAGE);  // advice: refusal costs speed only
#else
  (void)huge_from;
#endif
  data_ = aligned;
  bytes_ = bytes;
}

Pages::~Pages() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

#endif

Pages::Pages(Pages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace elasticdl
