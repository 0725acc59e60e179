#include "optimizer.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace elasticdl {
namespace {

void require(bool holds, const char* name, const char* limits, double value) {
  if (holds) return;
  throw std::invalid_argument(std::string("optimizer: ") + name + " must be " + limits + ", got " +
                              std::to_string(value));
}

void require_positive_or_zero(const char* name, double value) {
  require(value >= 0 && std::isfinite(value), name, "a number that is not negative", value);
}

void require_fraction(const char* name, double value) {
  require(value >= 0 && value < 1, name, "from 0 to below 1", value);
}

Rule rule_of(const std::string& kind, bool keras, const Constants& c) {
  if (kind == "sgd") {
    if (c.momentum == 0) return Rule::sgd;
    if (c.nesterov) return keras ? Rule::keras_nesterov : Rule::torch_nesterov;
    return keras ? Rule::keras_momentum : Rule::torch_momentum;
  }
  if (kind == "adagrad") return keras ? Rule::keras_adagrad : Rule::torch_adagrad;
  if (kind == "adam") {
    if (c.amsgrad) return keras ? Rule::keras_amsgrad : Rule::torch_amsgrad;
    return keras ? Rule::keras_adam : Rule::torch_adam;
  }
  if (kind == "rmsprop") {
    const int first = static_cast<int>(keras ? Rule::keras_rmsprop : Rule::torch_rmsprop);
    return static_cast<Rule>(first + (c.momentum > 0 ? 1 : 0) + (c.centered ? 2 : 0));
  }
  if (kind == "ftrl") {
    if (!keras) throw std::invalid_argument("optimizer: torch has no ftrl");
    return c.power == 0.5 ? Rule::ftrl : Rule::ftrl_any_power;
  }
  throw std::invalid_argument("optimizer: expected kind sgd, adagrad, adam, rmsprop or ftrl, got '" + kind + "'");
}

}  // namespace

Optimizer::Optimizer(const std::string& kind, const std::string& flavour, const Constants& c) : constants(c) {
  if (flavour != "keras" && flavour != "torch") {
    throw std::invalid_argument("optimizer: expected flavour keras or torch, got '" + flavour + "'");
  }
  rule = rule_of(kind, flavour == "keras", c);
  slots = slots_of(rule);
  require(c.momentum >= 0 && c.momentum <= 1, "momentum", "from 0 to 1", c.momentum);
  require(std::isfinite(c.dampening), "dampening", "a finite number", c.dampening);
  require_positive_or_zero("initial_accumulator", c.initial_accumulator);
  require_positive_or_zero("epsilon", c.epsilon);
  require_positive_or_zero("weight_decay", c.weight_decay);
  require_positive_or_zero("rate_decay", c.rate_decay);
  require_positive_or_zero("l1", c.l1);
  require_positive_or_zero("l2", c.l2);
  require_positive_or_zero("l2_shrinkage", c.l2_shrinkage);
  require_positive_or_zero("beta", c.beta);
  require_positive_or_zero("power", c.power);
  require_fraction("beta_1", c.beta_1);
  require_fraction("beta_2", c.beta_2);
  require(c.rho >= 0 && c.rho <= 1, "rho", "from 0 to 1", c.rho);
  // FTRL's second slot, the linear one, starts at 0.
  if (kind == "adagrad" || kind == "ftrl") slot_starts[0] = static_cast<float>(c.initial_accumulator);
}

void Optimizer::start(float* first, size_t stride) const {
  for (int slot = 0; slot < slots; ++slot, first += stride) std::fill(first, first + stride, slot_starts[slot]);
}

Step Optimizer::at(double learning_rate, int64_t step) const {
  if (step < 1) throw std::invalid_argument("step: the first applied batch is step 1, got " + std::to_string(step));
  if (!std::isfinite(learning_rate)) {
    throw std::invalid_argument("learning rate must be a finite number, got " + std::to_string(learning_rate));
  }
  const Constants& c = constants;
  const double steps = static_cast<double>(step);
  if (c.rate_decay != 0) learning_rate /= 1.0 + (steps - 1) * c.rate_decay;
  Step s;
  s.rule = rule;
  s.rate = static_cast<float>(learning_rate);
  s.momentum = static_cast<float>(c.momentum);
  // torch takes the very first gradient whole: its buffers, also those of rows not touched then, are made by it.
  s.fresh = step == 1 ? 1.0f : static_cast<float>(1.0 - c.dampening);
  s.epsilon = static_cast<float>(c.epsilon);
  s.one_minus_beta_1 = static_cast<float>(1.0 - c.beta_1);
  s.beta_2 = static_cast<float>(c.beta_2);
  s.one_minus_beta_2 = static_cast<float>(1.0 - c.beta_2);
  s.sign = c.maximize ? -1.0f : 1.0f;
  if (c.decoupled) {
    s.keep = static_cast<float>(1.0 - learning_rate * c.weight_decay);
  } else {
    s.into_gradient = static_cast<float>(c.weight_decay);
  }
  s.prepared = c.maximize || c.weight_decay != 0;
  switch (rule) {
    case Rule::keras_adam:
    case Rule::keras_amsgrad: {
      // Keras raises float32 betas to the step: 1 - 0.999 then differs from 0.001 in the fifth digit.
      const double power_1 = std::pow(static_cast<double>(static_cast<float>(c.beta_1)), steps);
      const double power_2 = std::pow(static_cast<double>(static_cast<float>(c.beta_2)), steps);
      const float left_1 = 1.0f - static_cast<float>(power_1), left_2 = 1.0f - static_cast<float>(power_2);
      s.rate = s.rate * std::sqrt(left_2) / left_1;
      break;
    }
    case Rule::torch_adam:
    case Rule::torch_amsgrad:
      s.rate = static_cast<float>(learning_rate / (1.0 - std::pow(c.beta_1, steps)));
      s.root_correction_2 = static_cast<float>(std::sqrt(1.0 - std::pow(c.beta_2, steps)));
      break;
    case Rule::ftrl:
    case Rule::ftrl_any_power:
      if (s.rate < 0) {
        throw std::invalid_argument("learning rate of FTRL must not be negative, got " + std::to_string(learning_rate));
      }
      if (s.rate == 0) s.rule = Rule::sgd;  // FTRL divides by the rate; a step of 0 moves nothing
      s.power = static_cast<float>(c.power);
      s.l1 = static_cast<float>(c.l1);
      s.twice_l2 = 2.0f * (static_cast<float>(c.l2) + static_cast<float>(c.beta) / (2.0f * s.rate));
      s.twice_shrinkage = static_cast<float>(2.0 * c.l2_shrinkage);
      break;
    case Rule::keras_rmsprop:
    case Rule::keras_rmsprop_momentum:
    case Rule::keras_rmsprop_centered:
    case Rule::keras_rmsprop_centered_momentum:
    case Rule::torch_rmsprop:
    case Rule::torch_rmsprop_momentum:
    case Rule::torch_rmsprop_centered:
    case Rule::torch_rmsprop_centered_momentum:
      s.beta_2 = static_cast<float>(c.rho);
      s.one_minus_beta_2 = static_cast<float>(1.0 - c.rho);
      break;
    default:
      break;
  }
  return s;
}

}  // namespace elasticdl
