// The optimizers that run on a server: one step of each, over runs of elements.
//
// They do the operations of Keras 3 in the same order and in the variable's dtype. Training on
// servers therefore agrees with training in one process.
#ifndef TFDIST_OPS_CORE_PS_OPTIMIZERS_OPTIMIZER_H_
#define TFDIST_OPS_CORE_PS_OPTIMIZERS_OPTIMIZER_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/base/status.h"
#include "core/math/dtype.h"

namespace tfdist::ps {

enum class OptimizerKind : uint8_t {
  kSgd = 1,      // optionally with momentum, or Nesterov momentum
  kAdagrad = 2,  // Duchi et al. 2011
  kRmsprop = 3,  // Tieleman and Hinton 2012
  kAdam = 4,     // Kingma and Ba 2015; AdamW is Adam with a weight decay
  kAdamax = 5,
  kFtrl = 6,      // McMahan et al. 2013
  kLion = 7,      // Chen et al. 2023
  kAdadelta = 8,  // Zeiler 2012
  kNadam = 9,     // Dozat 2016
};

// The hyperparameters that stay constant between steps. Each kind reads its own fields, which have
// the names of Keras. Python passes this struct through ctypes.
struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kSgd;
  bool nesterov = false;
  bool centered = false;
  bool amsgrad = false;
  double momentum = 0;
  double rho = 0;
  double beta_1 = 0;
  double beta_2 = 0;
  double epsilon = 0;
  double learning_rate_power = 0;
  double l1_regularization_strength = 0;
  double l2_regularization_strength = 0;
  double l2_shrinkage_regularization_strength = 0;
  double beta = 0;
  // Of Adafactor, which exists only for rows of tables.
  double beta_2_decay = 0;
  double epsilon_1 = 0;
  double epsilon_2 = 0;
  double clip_threshold = 0;

  // In their order on the wire (protocol/message.h).
  template <typename Config, typename Visitor>
  static void Fields(Config& c, Visitor& visit) {
    visit.Enum(c.kind, OptimizerKind::kSgd, OptimizerKind::kNadam);
    visit(c.nesterov, c.centered, c.amsgrad);
    visit(c.momentum, c.rho, c.beta_1, c.beta_2, c.epsilon, c.learning_rate_power);
    visit(c.l1_regularization_strength, c.l2_regularization_strength,
          c.l2_shrinkage_regularization_strength, c.beta);
    visit(c.beta_2_decay, c.epsilon_1, c.epsilon_2, c.clip_threshold);
  }
};

// The values that change with each step; a push carries them.
struct StepValues {
  double learning_rate = 0;
  int64_t step = 1;  // counted from 1

  template <typename Values, typename Visitor>
  static void Fields(Values& v, Visitor& visit) {
    visit(v.learning_rate, v.step);
  }
};

inline constexpr int kMaxSlots = 3;

// The number of slots that an optimizer has per variable. They are in the order of Keras's `build`:
//   - SGD: momentum, if configured
//   - Adagrad: accumulator
//   - RMSprop: velocity; momentum, if configured; average gradient, if centered
//   - Adam: momentum, velocity; largest velocity, with amsgrad
//   - Adamax: momentum, norm
//   - Ftrl: accumulator, linear
//   - Lion: momentum
//   - Adadelta: accumulated gradient, accumulated change
//   - Nadam: momentum, velocity
int SlotCount(const OptimizerConfig& config);

// A run of elements of a variable or slot, before and after a step. `out` is equal to `in`, or
// overlaps no other run. Runs and the gradient are aligned to the element.
struct Run {
  const void* in = nullptr;
  void* out = nullptr;
};

struct StepRuns {
  const void* gradient = nullptr;
  Run value;
  std::array<Run, kMaxSlots> slots;
};

// Whether optimizers support `dtype`: float32 and float64.
bool CanOptimize(DType dtype);

// Makes one step. A `weight_decay` other than 0 first subtracts value * weight_decay *
// learning_rate from the value.
void Optimize(const OptimizerConfig& config, const StepValues& step, double weight_decay,
              DType dtype, size_t count, const StepRuns& runs);

// Whether a step with a gradient of zeros changes nothing. Then only the rows of a sparse gradient
// have to be visited.
bool LeavesZeroGradientsAlone(const OptimizerConfig& config, double weight_decay);

// gradient += lambda * gradient^2 * (now - then): a first-order correction of a gradient that was
// computed at the values `then` and is applied to the values `now` (DC-ASGD, Zheng et al. 2017).
void CompensateDelay(DType dtype, size_t count, double lambda, const void* now, const void* then,
                     void* gradient);

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_OPTIMIZERS_OPTIMIZER_H_
