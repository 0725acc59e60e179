// Optimizers: which rule moves a weight, and the numbers that rule needs for one step.
#pragma once
#include <cstdint>
#include <string>

namespace elasticdl {

// One entry per formula. The two libraries' Nesterov, Adagrad and Adam differ, so each has its own.
enum class Rule : uint8_t {
  sgd,
  keras_momentum,
  keras_nesterov,
  torch_momentum,
  torch_nesterov,
  keras_adagrad,
  torch_adagrad,
  keras_adam,
  torch_adam,
};
constexpr int kRules = 9;

// What a rule needs for one step, ready as float32.
struct Step {
  float rate = 0;  // learning rate; Adam: with the bias correction folded in
  float momentum = 0;
  float epsilon = 0;
  float one_minus_beta_1 = 0;
  float beta_2 = 0;
  float one_minus_beta_2 = 0;
  float root_correction_2 = 0;  // torch Adam: sqrt(1 - beta_2^step)
};

struct Optimizer {
  Optimizer(const std::string& kind, const std::string& flavour, double momentum, bool nesterov,
            double initial_accumulator, double beta_1, double beta_2, double epsilon);

  Step at(double learning_rate, int64_t step) const;

  Rule rule;
  int slots;
  float slot_start;  // what slots hold when a row is born
  double momentum, beta_1, beta_2, epsilon;
};

}  // namespace elasticdl
