// Pages straight from the kernel: aligned to 2 MiB, on huge pages where asked, zero when first touched.
#pragma once
#include <cstddef>
#include <cstdint>
#include <new>
#include <string>

namespace elasticdl {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kPage = 4096;

inline size_t round_up(size_t bytes, size_t granule) { return (bytes + granule - 1) / granule * granule; }

// The largest power of two that is not above n; n >= 1.
inline size_t floor_power_of_two(size_t n) {
  size_t power = 1;
  while (power <= n / 2) power *= 2;
  return power;
}

inline unsigned log2_of_power(size_t power) { return static_cast<unsigned>(__builtin_ctzll(power)); }

// Thrown when the system gives no more memory; the store adds what it held.
struct OutOfMemory : std::bad_alloc {
  explicit OutOfMemory(std::string text) : message(std::move(text)) {}
  const char* what() const noexcept override { return message.c_str(); }
  std::string message;
};

// One mapping. `huge_from` is the offset from which huge pages are asked for (bytes = nowhere).
class Pages {
 public:
  Pages() = default;
  Pages(size_t bytes, size_t huge_from);
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;
  ~Pages();

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  char* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace elasticdl
