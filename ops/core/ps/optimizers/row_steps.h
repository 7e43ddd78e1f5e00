// Optimizer steps that treat a row of a table as a vector, not as independent elements.
#ifndef TFDIST_OPS_CORE_PS_OPTIMIZERS_ROW_STEPS_H_
#define TFDIST_OPS_CORE_PS_OPTIMIZERS_ROW_STEPS_H_

#include <cstddef>

#include "core/ps/optimizers/optimizer.h"

namespace tfdist::ps {

// Adagrad with one accumulator for the whole row: the sum of the mean squared gradients.
void StepRowwiseAdagrad(const OptimizerConfig& config, const StepValues& step, size_t width,
                        const float* gradient, float* row, float* accumulator);

// Ftrl-proximal with a group lasso on the row: the row is zero if the norm of its linear part does
// not exceed the penalty (Yue et al. 2021, Adaptive Optimizers with Sparse Group Lasso).
void StepGroupFtrl(const OptimizerConfig& config, double group_penalty, const StepValues& step,
                   size_t width, const float* gradient, float* row, float* accumulator,
                   float* linear);

// Adafactor for a vector (Shazeer and Stern 2018, algorithm 5): the update is clipped by its
// root-mean-square, and the step size is relative to the root-mean-square of the row.
void StepAdafactor(const OptimizerConfig& config, const StepValues& step, size_t width,
                   const float* gradient, float* row, float* velocity);

// Lamb: Adam's update, scaled to the norm of the row times the learning rate (You et al. 2020).
void StepLamb(const OptimizerConfig& config, const StepValues& step, size_t width,
              const float* gradient, float* row, float* momentum, float* velocity);

// Makes Adam's steps from `last` + 1 to `until` with gradients of zero, all at `learning_rate`: the
// steps of a dense variable while this row has no gradient.
void CatchUpAdam(const OptimizerConfig& config, double learning_rate, int64_t last, int64_t until,
                 size_t width, float* row, float* momentum, float* velocity);

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_OPTIMIZERS_ROW_STEPS_H_
