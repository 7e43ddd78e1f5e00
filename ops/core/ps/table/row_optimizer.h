// The layout of a table's rows, and the change of a row by a gradient.
//
// A row's content is its value, `width` floats, and then its slots. Most rules have slots of
// `width` floats. kRowwiseAdagrad has one float; kExactAdam has two slots of `width` floats and a
// number: the last step (int32) that the row has made.
#ifndef TFDIST_OPS_CORE_PS_TABLE_ROW_OPTIMIZER_H_
#define TFDIST_OPS_CORE_PS_TABLE_ROW_OPTIMIZER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/ps/table/table_config.h"

namespace tfdist::ps {

// The floats of a row, with its slots.
size_t ContentFloats(const TableConfig& config);

// Any thread may call it, for a row that no other thread uses.
class RowOptimizer {
 public:
  explicit RowOptimizer(const TableConfig& config);

  size_t content_floats() const { return content_floats_; }

  // Sets the slots of a new row.
  void FillSlots(float* slots) const;

  // Announces a step, before Step.
  void BeginStep(const StepValues& step);
  // Makes the step with the gradient of one row. A row with a gradient in a step was looked up
  // before the step, and has caught up then.
  void Step(float* content, const float* gradient, const StepValues& step) const;

  // Whether rows have to catch up with the steps in which they had no gradient.
  bool rows_catch_up() const { return config_.rule == RowRule::kExactAdam; }
  // If rows catch up: the step that the row has to catch up to because it had no gradient in the
  // steps since its last; nothing if it is up to date.
  std::optional<int64_t> PendingStep(const float* content) const;
  void CatchUp(float* content, int64_t step) const;

  // The last step that was announced, if the rule depends on it.
  StepValues last_step() const { return {learning_rate_, last_step_}; }
  void RestoreStep(const StepValues& step);

 private:
  const TableConfig& config_;
  const size_t slots_, content_floats_;
  std::atomic<int64_t> last_step_{0};
  std::atomic<double> learning_rate_{0};
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_TABLE_ROW_OPTIMIZER_H_
