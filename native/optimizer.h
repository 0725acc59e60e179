// Optimizers: which rule moves a weight, and the numbers that rule needs for one step.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace elasticdl {

// One entry per formula, where the two libraries differ one for each. FTRL is Keras' alone.
#define ELASTICDL_EACH_RULE(X)       \
  X(sgd)                             \
  X(keras_momentum)                  \
  X(keras_nesterov)                  \
  X(torch_momentum)                  \
  X(torch_nesterov)                  \
  X(keras_adagrad)                   \
  X(torch_adagrad)                   \
  X(keras_adam)                      \
  X(torch_adam)                      \
  X(keras_amsgrad)                   \
  X(torch_amsgrad)                   \
  X(keras_rmsprop)                   \
  X(keras_rmsprop_momentum)          \
  X(keras_rmsprop_centered)          \
  X(keras_rmsprop_centered_momentum) \
  X(torch_rmsprop)                   \
  X(torch_rmsprop_momentum)          \
  X(torch_rmsprop_centered)          \
  X(torch_rmsprop_centered_momentum) \
  X(ftrl)                            \
  X(ftrl_any_power)

enum class Rule : uint8_t {
#define ELASTICDL_RULE(name) name,
  ELASTICDL_EACH_RULE(ELASTICDL_RULE)
#undef ELASTICDL_RULE
      end
};
constexpr int kRules = static_cast<int>(Rule::end);
constexpr int kMaxSlots = 3;

// How many floats of state a weight carries.
static constexpr int slots_of(Rule rule) {
  switch (rule) {
    case Rule::sgd:
      return 0;
    case Rule::keras_momentum:
    case Rule::keras_nesterov:
    case Rule::torch_momentum:
    case Rule::torch_nesterov:
    case Rule::keras_adagrad:
    case Rule::torch_adagrad:
    case Rule::keras_rmsprop:
    case Rule::torch_rmsprop:
      return 1;
    case Rule::keras_amsgrad:
    case Rule::torch_amsgrad:
    case Rule::keras_rmsprop_centered_momentum:
    case Rule::torch_rmsprop_centered_momentum:
      return 3;
    default:
      return 2;
  }
}

// What a rule needs for one step, ready as float32.
struct Step {
  Rule rule = Rule::sgd;
  float rate = 0;  // learning rate; Adam: with the bias correction folded in
  float momentum = 0;
  float fresh = 1;  // torch momentum: the part of the gradient that enters the buffer, 1 - dampening
  float epsilon = 0;
  float one_minus_beta_1 = 0;
  float beta_2 = 0;  // RMSprop: rho
  float one_minus_beta_2 = 0;
  float root_correction_2 = 0;  // torch Adam: sqrt(1 - beta_2^step)
  float power = 0;              // FTRL: of the accumulator
  float l1 = 0;
  float twice_l2 = 0;
  float twice_shrinkage = 0;
  // Before the rule, where `prepared` says so: gradient = sign * gradient + into_gradient * weight; weight *= keep.
  bool prepared = false;
  float sign = 1;
  float into_gradient = 0;
  float keep = 1;
};

// The constants of an optimizer, in the terms of OptimizerSpec.
struct Constants {
  double momentum = 0, dampening = 0;
  bool nesterov = false;
  double initial_accumulator = 0;
  double beta_1 = 0.9, beta_2 = 0.999, epsilon = 1e-7;
  bool amsgrad = false;
  double rho = 0.9;
  bool centered = false;
  double weight_decay = 0;
  bool decoupled = false;
  bool maximize = false;
  double rate_decay = 0;
  double power = 0.5, l1 = 0, l2 = 0, l2_shrinkage = 0, beta = 0;
};

struct Optimizer {
  Optimizer(const std::string& kind, const std::string& flavour, const Constants& constants);

  Step at(double learning_rate, int64_t step) const;
  void start(float* slots, size_t stride) const;  // slot k, from slots + k * stride on, at its initial value

  Rule rule;
  int slots;
  float slot_starts[kMaxSlots] = {0, 0, 0};  // what each slot holds when a row is born
  Constants constants;
};

}  // namespace elasticdl
