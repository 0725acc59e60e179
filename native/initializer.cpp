#include "initializer.h"

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "hash.h"

namespace elasticdl {
namespace {

// log and cos of our own: libm may choose another instruction set, and then another last bit, on another machine.

// Natural logarithm of x in (0, 1], by the series of atanh over a mantissa near 1.
double portable_log(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  bits = (bits & 0x000fffffffffffffULL) | 0x3ff0000000000000ULL;
  double mantissa;
  std::memcpy(&mantissa, &bits, sizeof mantissa);
  if (mantissa > 1.4142135623730951) {
    mantissa *= 0.5;
    ++exponent;
  }
  const double t = (mantissa - 1.0) / (mantissa + 1.0);
  const double t2 = t * t;
  double series = 0.0;
  for (int k = 21; k >= 1; k -= 2) series = series * t2 + 1.0 / k;
  return exponent * 0.6931471805599453 + 2.0 * t * series;
}

// sin and cos of a quarter turn times x, x in [0, 1], by Taylor's series.
void quarter_turn(double x, double* sine, double* cosine) {
  const double y = x * 1.5707963267948966;
  const double y2 = y * y;
  double s = 1.0, c = 1.0;
  for (int k = 10; k >= 1; --k) {
    s = 1.0 - y2 * s / ((2.0 * k) * (2.0 * k + 1.0));
    c = 1.0 - y2 * c / ((2.0 * k - 1.0) * (2.0 * k));
  }
  *sine = y * s;
  *cosine = c;
}

// Two independent standard normal numbers from 64 random bits (Box and Muller).
void normal_pair(uint64_t bits, double* first, double* second) {
  const double radius_uniform = ((bits >> 32) + 1.0) * 0x1p-32;              // (0, 1]
  const double turns = static_cast<double>(bits & 0xffffffffULL) * 0x1p-30;  // quarter turns, [0, 4)
  const double radius = std::sqrt(-2.0 * portable_log(radius_uniform));
  const int quadrant = static_cast<int>(turns);
  double s, c;
  quarter_turn(turns - quadrant, &s, &c);
  const double cosines[4] = {c, -s, -c, s};
  const double sines[4] = {s, c, -s, -c};
  *first = radius * cosines[quadrant];
  *second = radius * sines[quadrant];
}

}  // namespace

Initializer::Initializer(const std::string& kind, double a, double b, uint64_t seed)
    : a_(a), b_(b), below_b_(std::nextafter(static_cast<float>(b), static_cast<float>(a))), seed_(seed) {
  const std::string given = "got a=" + std::to_string(a) + " and b=" + std::to_string(b);
  if (kind == "constant") {
    kind_ = Kind::constant;
  } else if (kind == "uniform") {
    kind_ = Kind::uniform;
    if (!(a <= b)) throw std::invalid_argument("initializer uniform: a must not be above b, " + given);
  } else if (kind == "normal") {
    kind_ = Kind::normal;
    if (!(b >= 0))
      throw std::invalid_argument("initializer normal: the standard deviation b must not be negative, " + given);
  } else {
    throw std::invalid_argument("initializer: expected constant, uniform or normal, got '" + kind + "'");
  }
  if (!std::isfinite(a) || !std::isfinite(b))
    throw std::invalid_argument("initializer: a and b must be finite, " + given);
}

void Initializer::fill(int64_t id, size_t dim, float* out) const {
  if (kind_ == Kind::constant) {
    for (size_t i = 0; i < dim; ++i) out[i] = static_cast<float>(a_);
    return;
  }
  uint64_t counter = stream_of(seed_, id);
  const float low = static_cast<float>(a_), high = static_cast<float>(b_);
  const float width = high - low;
  for (size_t i = 0; i < dim; i += 2) {  // one draw of 64 bits serves two components
    const uint64_t bits = mix64(counter += kGolden);
    float pair[2];
    if (kind_ == Kind::uniform) {
      pair[0] = low + width * (static_cast<float>(bits >> 40) * 0x1p-24f);
      pair[1] = low + width * (static_cast<float>((bits >> 8) & 0xffffff) * 0x1p-24f);
      for (float& value : pair) value = value < high ? value : below_b_;  // rounding may reach the open end
    } else {
      double first, second;
      normal_pair(bits, &first, &second);
      pair[0] = static_cast<float>(a_ + b_ * first);
      pair[1] = static_cast<float>(a_ + b_ * second);
    }
    out[i] = pair[0];
    if (i + 1 < dim) out[i + 1] = pair[1];
  }
}

}  // namespace elasticdl
