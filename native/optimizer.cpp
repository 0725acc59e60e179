#include "optimizer.h"

#include <cmath>
#include <stdexcept>

namespace elasticdl {
namespace {

void require(bool holds, const char* name, const char* limits, double value) {
  if (holds) return;
  throw std::invalid_argument(std::string("optimizer: ") + name + " must be " + limits + ", got " +
                              std::to_string(value));
}

}  // namespace

Optimizer::Optimizer(const std::string& kind, const std::string& flavour, double momentum_, bool nesterov,
                     double initial_accumulator, double beta_1_, double beta_2_, double epsilon_)
    : slot_start(0), momentum(momentum_), beta_1(beta_1_), beta_2(beta_2_), epsilon(epsilon_) {
  if (flavour != "keras" && flavour != "torch") {
    throw std::invalid_argument("optimizer: expected flavour keras or torch, got '" + flavour + "'");
  }
  const bool keras = flavour == "keras";
  require(epsilon >= 0 && std::isfinite(epsilon), "epsilon", "a number that is not negative", epsilon);
  if (kind == "sgd") {
    require(momentum >= 0 && momentum <= 1, "momentum", "from 0 to 1", momentum);
    slots = momentum == 0 ? 0 : 1;
    if (slots == 0) {
      rule = Rule::sgd;
    } else if (nesterov) {
      rule = keras ? Rule::keras_nesterov : Rule::torch_nesterov;
    } else {
      rule = keras ? Rule::keras_momentum : Rule::torch_momentum;
    }
  } else if (kind == "adagrad") {
    require(initial_accumulator >= 0 && std::isfinite(initial_accumulator), "initial_accumulator",
            "a number that is not negative", initial_accumulator);
    slots = 1;
    slot_start = static_cast<float>(initial_accumulator);
    rule = keras ? Rule::keras_adagrad : Rule::torch_adagrad;
  } else if (kind == "adam") {
    require(beta_1 >= 0 && beta_1 < 1, "beta_1", "from 0 to below 1", beta_1);
    require(beta_2 >= 0 && beta_2 < 1, "beta_2", "from 0 to below 1", beta_2);
    slots = 2;
    rule = keras ? Rule::keras_adam : Rule::torch_adam;
  } else {
    throw std::invalid_argument("optimizer: expected kind sgd, adagrad or adam, got '" + kind + "'");
  }
}

Step Optimizer::at(double learning_rate, int64_t step) const {
  if (step < 1) throw std::invalid_argument("step: the first applied batch is step 1, got " + std::to_string(step));
  if (!std::isfinite(learning_rate)) {
    throw std::invalid_argument("learning rate must be a finite number, got " + std::to_string(learning_rate));
  }
  Step s;
  s.rate = static_cast<float>(learning_rate);
  s.momentum = static_cast<float>(momentum);
  s.epsilon = static_cast<float>(epsilon);
  s.one_minus_beta_1 = static_cast<float>(1.0 - beta_1);
  s.beta_2 = static_cast<float>(beta_2);
  s.one_minus_beta_2 = static_cast<float>(1.0 - beta_2);
  if (rule == Rule::keras_adam) {
    // Keras raises float32 betas to the step: 1 - 0.999 then differs from 0.001 in the fifth digit.
    const double power_1 = std::pow(static_cast<double>(static_cast<float>(beta_1)), static_cast<double>(step));
    const double power_2 = std::pow(static_cast<double>(static_cast<float>(beta_2)), static_cast<double>(step));
    const float left_1 = 1.0f - static_cast<float>(power_1), left_2 = 1.0f - static_cast<float>(power_2);
    s.rate = s.rate * std::sqrt(left_2) / left_1;
  } else if (rule == Rule::torch_adam) {
    s.rate = static_cast<float>(learning_rate / (1.0 - std::pow(beta_1, static_cast<double>(step))));
    s.root_correction_2 = static_cast<float>(std::sqrt(1.0 - std::pow(beta_2, static_cast<double>(step))));
  }
  return s;
}

}  // namespace elasticdl
