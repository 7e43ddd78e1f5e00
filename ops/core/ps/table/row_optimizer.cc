#include "core/ps/table/row_optimizer.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/ps/optimizers/row_steps.h"

namespace tfdist::ps {
namespace {

size_t SlotsOf(const TableConfig& config) {
  switch (config.rule) {
    case RowRule::kElementwise:
      return static_cast<size_t>(SlotCount(config.optimizer));
    case RowRule::kRowwiseAdagrad:
      return 1;
    case RowRule::kGroupFtrl:
      return 2;
    case RowRule::kExactAdam:
      return 3;  // momentum, velocity, and the row's last step
    case RowRule::kAdafactor:
      return 1;
    case RowRule::kLamb:
      return 2;
  }
  std::abort();  // unknown rules are refused when they are decoded
}

// The last step of a row with kExactAdam, which is stored behind two slots.
int32_t LastStepOf(const float* slots, size_t width) {
  int32_t step = 0;
  std::memcpy(&step, slots + 2 * width, sizeof(step));
  return step;
}
void SetLastStep(int64_t step, size_t width, float* slots) {
  const auto last = static_cast<int32_t>(step);
  std::memcpy(slots + 2 * width, &last, sizeof(last));
}

}  // namespace

size_t ContentFloats(const TableConfig& config) {
  const size_t width = config.width;
  if (config.rule == RowRule::kRowwiseAdagrad) return width + 1;
  if (config.rule == RowRule::kExactAdam) return 3 * width + 1;
  return width * (1 + SlotsOf(config));
}

RowOptimizer::RowOptimizer(const TableConfig& config)
    : config_(config), slots_(SlotsOf(config)), content_floats_(ContentFloats(config)) {}

void RowOptimizer::FillSlots(float* slots) const {
  const size_t slot_floats = content_floats_ - config_.width;
  if (config_.rule == RowRule::kExactAdam) {
    std::fill_n(slots, slot_floats, 0.0f);
    SetLastStep(last_step_, config_.width, slots);
  } else {
    const size_t each = slots_ == 0 ? 0 : slot_floats / slots_;
    for (size_t i = 0; i < slots_; ++i) {
      std::fill_n(slots + i * each, each, static_cast<float>(config_.first_slots[i]));
    }
  }
}

void RowOptimizer::BeginStep(const StepValues& step) {
  if (config_.rule != RowRule::kExactAdam) return;
  learning_rate_ = step.learning_rate;
  int64_t last = last_step_;
  while (last < step.step && !last_step_.compare_exchange_weak(last, step.step)) {
  }
}

void RowOptimizer::Step(float* content, const float* gradient, const StepValues& step) const {
  const size_t width = config_.width;
  float* const slots = content + width;
  if (config_.weight_decay > 0) {
    const auto decay = static_cast<float>(config_.weight_decay);
    const auto rate = static_cast<float>(step.learning_rate);
    for (size_t i = 0; i < width; ++i) content[i] -= content[i] * decay * rate;
  }
  switch (config_.rule) {
    case RowRule::kElementwise: {
      StepRuns runs{gradient, {content, content}, {}};
      for (size_t i = 0; i < slots_; ++i) runs.slots[i] = {slots + i * width, slots + i * width};
      return Optimize(config_.optimizer, step, 0, DType::kFloat32, width, runs);
    }
    case RowRule::kAdafactor:
      return StepAdafactor(config_.optimizer, step, width, gradient, content, slots);
    case RowRule::kLamb:
      return StepLamb(config_.optimizer, step, width, gradient, content, slots, slots + width);
    case RowRule::kRowwiseAdagrad:
      return StepRowwiseAdagrad(config_.optimizer, step, width, gradient, content, slots);
    case RowRule::kGroupFtrl:
      return StepGroupFtrl(config_.optimizer, config_.group_penalty, step, width, gradient, content,
                           slots, slots + width);
    case RowRule::kExactAdam: {
      CatchUpAdam(config_.optimizer, step.learning_rate, LastStepOf(slots, width),
                  std::max<int64_t>(step.step, 1) - 1, width, content, slots, slots + width);
      StepRuns runs{gradient, {content, content}, {}};
      for (size_t i = 0; i < 2; ++i) runs.slots[i] = {slots + i * width, slots + i * width};
      Optimize(config_.optimizer, step, 0, DType::kFloat32, width, runs);
      return SetLastStep(step.step, width, slots);
    }
  }
}

std::optional<int64_t> RowOptimizer::PendingStep(const float* content) const {
  const int64_t until = last_step_;
  if (LastStepOf(content + config_.width, config_.width) >= until) return std::nullopt;
  return until;
}

void RowOptimizer::CatchUp(float* content, int64_t step) const {
  const size_t width = config_.width;
  float* const slots = content + width;
  CatchUpAdam(config_.optimizer, learning_rate_, LastStepOf(slots, width), step, width, content,
              slots, slots + width);
  SetLastStep(step, width, slots);
}

void RowOptimizer::RestoreStep(const StepValues& step) {
  learning_rate_ = step.learning_rate;
  last_step_ = step.step;
}

}  // namespace tfdist::ps
