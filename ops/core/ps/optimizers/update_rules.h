// The step of each optimizer for one element.
//
// Constants are rounded to the variable's dtype and operations are ordered as in Keras. A step
// therefore differs from Keras's only where TensorFlow rearranges a compiled step, or computes a
// power.
#ifndef TFDIST_OPS_CORE_PS_OPTIMIZERS_UPDATE_RULES_H_
#define TFDIST_OPS_CORE_PS_OPTIMIZERS_UPDATE_RULES_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/ps/optimizers/optimizer.h"

namespace tfdist::ps {

// The result of Keras's `ops.cast` of a Python number, which converts it to float32 first.
template <typename T>
T Cast(double number) {
  return static_cast<T>(static_cast<float>(number));
}

// Of Nadam's momentum schedule.
inline constexpr double kNadamDecay = 0.96;

// Each step is called as step(gradient, value, slots) and changes `value` and `slots`. Options of
// the configuration are template parameters, so that the loop over elements has no branches.

template <typename T>
struct SgdStep {
  static constexpr size_t kSlots = 0;
  SgdStep(const OptimizerConfig&, const StepValues& at)
      : learning_rate(static_cast<T>(at.learning_rate)) {}

  void operator()(T gradient, T& value, std::array<T, kSlots>&) const {
    value -= gradient * learning_rate;
  }

  T learning_rate;
};

template <typename T, bool nesterov>
struct MomentumStep {
  static constexpr size_t kSlots = 1;
  MomentumStep(const OptimizerConfig& config, const StepValues& at)
      : learning_rate(static_cast<T>(at.learning_rate)), momentum(Cast<T>(config.momentum)) {}

  void operator()(T gradient, T& value, std::array<T, kSlots>& slots) const {
    T& velocity = slots[0];
    velocity = velocity * momentum - gradient * learning_rate;
    value += nesterov ? velocity * momentum - gradient * learning_rate : velocity;
  }

  T learning_rate, momentum;
};

template <typename T>
struct AdagradStep {
  static constexpr size_t kSlots = 1;
  AdagradStep(const OptimizerConfig& config, const StepValues& at)
      : learning_rate(static_cast<T>(at.learning_rate)), epsilon(static_cast<T>(config.epsilon)) {}

  void operator()(T gradient, T& value, std::array<T, kSlots>& slots) const {
    T& accumulator = slots[0];
    accumulator += gradient * gradient;
    value -= learning_rate * gradient / std::sqrt(accumulator + epsilon);
  }

  T learning_rate, epsilon;
};

template <typename T, bool has_momentum, bool centered>
struct RmspropStep {
  static constexpr size_t kMomentum = 1;
  static constexpr size_t kAverage = has_momentum ? 2 : 1;
  static constexpr size_t kSlots = 1 + has_momentum + centered;
  RmspropStep(const OptimizerConfig& config, const StepValues& at)
      : learning_rate(static_cast<T>(at.learning_rate)),
        rho(static_cast<T>(config.rho)),
        one_minus_rho(static_cast<T>(1 - config.rho)),
        momentum(static_cast<T>(config.momentum)),
        epsilon(static_cast<T>(config.epsilon)) {}

  void operator()(T gradient, T& value, std::array<T, kSlots>& slots) const {
    T& velocity = slots[0];
    velocity = rho * velocity + one_minus_rho * (gradient * gradient);
    T variance = velocity;
    if constexpr (centered) {
      T& average = slots[kAverage];
      average = rho * average + one_minus_rho * gradient;
      variance -= average * average;
    }
    T change = learning_rate * gradient / std::sqrt(variance + epsilon);
    if constexpr (has_momentum) {
      change = momentum * slots[kMomentum] + change;
      slots[kMomentum] = change;
    }
    value -= change;
  }

  T learning_rate, rho, one_minus_rho, momentum, epsilon;
};

template <typename T, bool amsgrad>
struct AdamStep {
  static constexpr size_t kSlots = amsgrad ? 3 : 2;
  AdamStep(const OptimizerConfig& config, const StepValues& at)
      : one_minus_beta_1(static_cast<T>(1 - config.beta_1)),
        one_minus_beta_2(static_cast<T>(1 - config.beta_2)),
        epsilon(static_cast<T>(config.epsilon)) {
    const T beta_1_power = std::pow(Cast<T>(config.beta_1), static_cast<T>(at.step));
    const T beta_2_power = std::pow(Cast<T>(config.beta_2), static_cast<T>(at.step));
    alpha = static_cast<T>(at.learning_rate) * std::sqrt(1 - beta_2_power) / (1 - beta_1_power);
  }

  void operator()(T gradient, T& value, std::array<T, kSlots>& slots) const {
    T& momentum = slots[0];
    T& velocity = slots[1];
    momentum += (gradient - momentum) * one_minus_beta_1;
    velocity += (gradient * gradient - velocity) * one_minus_beta_2;
    T scale = velocity;
    if constexpr (amsgrad) {
      scale = slots[2] < velocity ? velocity : slots[2];
      slots[2] = scale;
    }
    value -= momentum * alpha / (std::sqrt(scale) + epsilon);
  }

  T alpha, one_minus_beta_1, one_minus_beta_2, epsilon;
};

template <typename T>
struct AdamaxStep {
  static constexpr size_t kSlots = 2;
  AdamaxStep(const OptimizerConfig& config, const StepValues& at)
      : learning_rate(static_cast<T>(at.learning_rate)),
        one_minus_beta_1(static_cast<T>(1 - config.beta_1)),
        beta_2(static_cast<T>(config.beta_2)),
        epsilon(static_cast<T>(config.epsilon)),
        correction(1 - std::pow(Cast<T>(config.beta_1), static_cast<T>(at.step))) {}

  void operator()(T gradient, T& value, std::array<T, kSlots>& slots) const {
    T& momentum = slots[0];
    T& norm = slots[1];
    momentum += (gradient - momentum) * one_minus_beta_1;
    const T decayed = beta_2 * norm;
    const T size = std::abs(gradient);
    norm = decayed < size ? size : decayed;
    value -= learning_rate * momentum / (correction * (norm + epsilon));
  }

  T learning_rate, one_minus_beta_1, beta_2, epsilon, correction;
};

// `square_root`: for a learning rate power of -0.5, where a square root replaces the much slower
// power.
template <typename T, bool square_root>
struct FtrlStep {
  static constexpr size_t kSlots = 2;
  FtrlStep(const OptimizerConfig& config, const StepValues& at)
      : learning_rate(static_cast<T>(at.learning_rate)),
        power(static_cast<T>(-config.learning_rate_power)),
        l1(static_cast<T>(config.l1_regularization_strength)),
        twice_shrinkage(static_cast<T>(2 * config.l2_shrinkage_regularization_strength)) {
    const T l2 = static_cast<T>(config.l2_regularization_strength);
    twice_l2 = 2 * (l2 + static_cast<T>(config.beta) / (2 * learning_rate));
  }

  void operator()(T gradient, T& value, std::array<T, kSlots>& slots) const {
    T& accumulator = slots[0];
    T& linear = slots[1];
    const T accumulated = accumulator + gradient * gradient;
    const T before = Raise(accumulator);
    const T after = Raise(accumulated);
    linear += gradient + twice_shrinkage * value - (after - before) / learning_rate * value;
    const T above = linear > l1 ? l1 : linear;
    const T clipped = above < -l1 ? -l1 : above;
    value = (clipped - linear) / (after / learning_rate + twice_l2);
    accumulator = accumulated;
  }

  T Raise(T accumulated) const {
    return square_root ? std::sqrt(accumulated) : std::pow(accumulated, power);
  }

  T learning_rate, power, l1, twice_shrinkage, twice_l2;
};

template <typename T>
struct LionStep {
  static constexpr size_t kSlots = 1;
  LionStep(const OptimizerConfig& config, const StepValues& at)
      : learning_rate(static_cast<T>(at.learning_rate)),
        beta_1(Cast<T>(config.beta_1)),
        beta_2(Cast<T>(config.beta_2)) {}

  void operator()(T gradient, T& value, std::array<T, kSlots>& slots) const {
    T& momentum = slots[0];
    const T direction = momentum * beta_1 + gradient * (1 - beta_1);
    // As in Keras, the sign of zero is zero and the sign of NaN is NaN.
    value -= learning_rate * (direction > 0 ? T(1) : direction < 0 ? T(-1) : direction);
    momentum = momentum * beta_2 + gradient * (1 - beta_2);
  }

  T learning_rate, beta_1, beta_2;
};

template <typename T>
struct AdadeltaStep {
  static constexpr size_t kSlots = 2;
  AdadeltaStep(const OptimizerConfig& config, const StepValues& at)
      : learning_rate(static_cast<T>(at.learning_rate)),
        rho(static_cast<T>(config.rho)),
        one_minus_rho(static_cast<T>(1 - config.rho)),
        epsilon(static_cast<T>(config.epsilon)) {}

  void operator()(T gradient, T& value, std::array<T, kSlots>& slots) const {
    T& squares = slots[0];
    T& changes = slots[1];
    squares = rho * squares + one_minus_rho * (gradient * gradient);
    const T change = std::sqrt(changes + epsilon) * gradient / std::sqrt(squares + epsilon);
    changes = rho * changes + one_minus_rho * (change * change);
    value -= learning_rate * change;
  }

  T learning_rate, rho, one_minus_rho, epsilon;
};

// The product of the factors 1 - 0.96^t / 2 of Nadam's momentum schedule over the first `steps`
// steps; without the factors beta_1. The factors approach 1: those after the first 1023 do not
// change the product.
inline double NadamProduct(int64_t steps) {
  constexpr size_t kFactors = 1024;
  static const std::array<double, kFactors> products = [] {
    std::array<double, kFactors> all{};
    double product = 1, decay = 1;
    for (double& each : all) {
      each = product;
      decay *= kNadamDecay;
      product *= 1 - 0.5 * decay;
    }
    return all;
  }();
  return products[std::min<uint64_t>(static_cast<uint64_t>(std::max<int64_t>(steps, 0)),
                                     kFactors - 1)];
}

template <typename T>
struct NadamStep {
  static constexpr size_t kSlots = 2;
  NadamStep(const OptimizerConfig& config, const StepValues& at)
      : learning_rate(static_cast<T>(at.learning_rate)),
        one_minus_beta_1(1 - Cast<T>(config.beta_1)),
        one_minus_beta_2(1 - Cast<T>(config.beta_2)),
        epsilon(static_cast<T>(config.epsilon)) {
    const T beta_1 = Cast<T>(config.beta_1), decay = Cast<T>(kNadamDecay);
    const T now = beta_1 * (1 - std::pow(decay, static_cast<T>(at.step)) / 2);
    const T next = beta_1 * (1 - std::pow(decay, static_cast<T>(at.step + 1)) / 2);
    const T product = static_cast<T>(std::pow(config.beta_1, static_cast<double>(at.step)) *
                                     NadamProduct(at.step));
    of_momentum = next / (1 - product * next);
    of_gradient = (1 - now) / (1 - product);
    correction = 1 - std::pow(Cast<T>(config.beta_2), static_cast<T>(at.step));
  }

  void operator()(T gradient, T& value, std::array<T, kSlots>& slots) const {
    T& momentum = slots[0];
    T& velocity = slots[1];
    momentum += (gradient - momentum) * one_minus_beta_1;
    velocity += (gradient * gradient - velocity) * one_minus_beta_2;
    const T ahead = of_momentum * momentum + of_gradient * gradient;
    value -= ahead * learning_rate / (std::sqrt(velocity / correction) + epsilon);
  }

  T learning_rate, one_minus_beta_1, one_minus_beta_2, epsilon;
  T of_momentum, of_gradient, correction;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_OPTIMIZERS_UPDATE_RULES_H_
