// How a row is born: a pure function of (seed, id, component), the same bits on every machine.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace elasticdl {

class Initializer {
 public:
  // kind: "constant" (a), "uniform" (from a to below b), "normal" (mean a, standard deviation b).
  Initializer(const std::string& kind, double a, double b, uint64_t seed);

  void fill(int64_t id, size_t dim, float* out) const;

 private:
  enum class Kind { constant, uniform, normal };
  Kind kind_;
  double a_, b_;
  float below_b_;  // the largest float under b
  uint64_t seed_;
};

}  // namespace elasticdl
