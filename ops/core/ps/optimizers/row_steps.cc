#include "core/ps/optimizers/row_steps.h"

#include <algorithm>
#include <cmath>

namespace tfdist::ps {
namespace {

float RootMeanSquare(const float* values, size_t count) {
  float squares = 0;
  for (size_t i = 0; i < count; ++i) squares += values[i] * values[i];
  return std::sqrt(squares / static_cast<float>(count));
}

}  // namespace

void StepRowwiseAdagrad(const OptimizerConfig& config, const StepValues& step, size_t width,
                        const float* gradient, float* row, float* accumulator) {
  float sum = 0;
  for (size_t i = 0; i < width; ++i) sum += gradient[i] * gradient[i];
  *accumulator += sum / static_cast<float>(width);
  const float rate = static_cast<float>(step.learning_rate) /
                     std::sqrt(*accumulator + static_cast<float>(config.epsilon));
  for (size_t i = 0; i < width; ++i) row[i] -= rate * gradient[i];
}

void StepGroupFtrl(const OptimizerConfig& config, double group_penalty, const StepValues& step,
                   size_t width, const float* gradient, float* row, float* accumulator,
                   float* linear) {
  const auto rate = static_cast<float>(step.learning_rate);
  const auto l1 = static_cast<float>(config.l1_regularization_strength);
  const auto l2 = static_cast<float>(config.l2_regularization_strength);
  const auto beta = static_cast<float>(config.beta);
  float squares = 0;
  for (size_t i = 0; i < width; ++i) {
    const float accumulated = accumulator[i] + gradient[i] * gradient[i];
    linear[i] += gradient[i] - (std::sqrt(accumulated) - std::sqrt(accumulator[i])) / rate * row[i];
    accumulator[i] = accumulated;
    const float beyond = std::max(0.0f, std::abs(linear[i]) - l1);
    squares += beyond * beyond;
  }
  const float norm = std::sqrt(squares);
  const auto penalty = static_cast<float>(group_penalty * std::sqrt(static_cast<double>(width)));
  const float shrunk = norm > penalty ? 1 - penalty / norm : 0;
  for (size_t i = 0; i < width; ++i) {
    const float beyond = std::copysign(std::max(0.0f, std::abs(linear[i]) - l1), linear[i]);
    row[i] = -shrunk * beyond / ((beta + std::sqrt(accumulator[i])) / rate + 2 * l2);
  }
}

void StepAdafactor(const OptimizerConfig& config, const StepValues& step, size_t width,
                   const float* gradient, float* row, float* velocity) {
  const auto at = static_cast<float>(step.step);
  const float rate = std::min(static_cast<float>(step.learning_rate), 1 / std::sqrt(at));
  const float alpha =
      std::max(static_cast<float>(config.epsilon_2), RootMeanSquare(row, width)) * rate;
  const float keep = 1 - std::pow(at, static_cast<float>(config.beta_2_decay));
  const auto epsilon_1 = static_cast<float>(config.epsilon_1);
  float squares = 0;
  for (size_t i = 0; i < width; ++i) {
    velocity[i] = keep * velocity[i] + (1 - keep) * (gradient[i] * gradient[i] + epsilon_1);
    squares += gradient[i] * gradient[i] / velocity[i];
  }
  const float size = std::sqrt(squares / static_cast<float>(width));
  const float scale = alpha / std::max(1.0f, size / static_cast<float>(config.clip_threshold));
  for (size_t i = 0; i < width; ++i) row[i] -= scale * (gradient[i] / std::sqrt(velocity[i]));
}

void StepLamb(const OptimizerConfig& config, const StepValues& step, size_t width,
              const float* gradient, float* row, float* momentum, float* velocity) {
  const auto at = static_cast<float>(step.step);
  const float correction_1 = 1 - std::pow(static_cast<float>(config.beta_1), at);
  const float correction_2 = 1 - std::pow(static_cast<float>(config.beta_2), at);
  const auto keep_1 = static_cast<float>(1 - config.beta_1);
  const auto keep_2 = static_cast<float>(1 - config.beta_2);
  const auto epsilon = static_cast<float>(config.epsilon);
  const auto update = [&](size_t i) {
    return momentum[i] / correction_1 / (std::sqrt(velocity[i] / correction_2) + epsilon);
  };
  float row_squares = 0, update_squares = 0;
  for (size_t i = 0; i < width; ++i) {
    momentum[i] += (gradient[i] - momentum[i]) * keep_1;
    velocity[i] += (gradient[i] * gradient[i] - velocity[i]) * keep_2;
    row_squares += row[i] * row[i];
    update_squares += update(i) * update(i);
  }
  const bool has_both = row_squares > 0 && update_squares > 0;
  const float ratio = has_both ? std::sqrt(row_squares) / std::sqrt(update_squares) : 1;
  const float rate = ratio * static_cast<float>(step.learning_rate);
  for (size_t i = 0; i < width; ++i) row[i] -= rate * update(i);
}

void CatchUpAdam(const OptimizerConfig& config, double learning_rate, int64_t last, int64_t until,
                 size_t width, float* row, float* momentum, float* velocity) {
  if (last >= until) return;
  const double beta_1 = config.beta_1, beta_2 = config.beta_2;
  // After this many steps momentum is too small to move the row.
  const double moving_steps =
      beta_1 > 0 ? std::max(0.0, std::ceil(std::log(1e-12) / std::log(beta_1))) : 1;
  // Compared as they are: near beta_1 = 1 there are more steps than an integer holds.
  const bool moves_all = !(moving_steps < static_cast<double>(until) - static_cast<double>(last));
  const int64_t moving = moves_all ? until : last + static_cast<int64_t>(moving_steps);
  double beta_1_power = std::pow(beta_1, static_cast<double>(last));
  double beta_2_power = std::pow(beta_2, static_cast<double>(last));
  const auto keep_1 = static_cast<float>(1 - beta_1), keep_2 = static_cast<float>(1 - beta_2);
  const auto epsilon = static_cast<float>(config.epsilon);
  for (int64_t at = last + 1; at <= moving; ++at) {
    beta_1_power *= beta_1;
    beta_2_power *= beta_2;
    const auto alpha =
        static_cast<float>(learning_rate * std::sqrt(1 - beta_2_power) / (1 - beta_1_power));
    for (size_t i = 0; i < width; ++i) {
      momentum[i] -= momentum[i] * keep_1;
      velocity[i] -= velocity[i] * keep_2;
      row[i] -= momentum[i] * alpha / (std::sqrt(velocity[i]) + epsilon);
    }
  }
  const auto rest = static_cast<double>(until - moving);
  const auto decay_1 = static_cast<float>(std::pow(beta_1, rest));
  const auto decay_2 = static_cast<float>(std::pow(beta_2, rest));
  for (size_t i = 0; i < width && rest > 0; ++i) {
    momentum[i] *= decay_1;
    velocity[i] *= decay_2;
  }
}

}  // namespace tfdist::ps
