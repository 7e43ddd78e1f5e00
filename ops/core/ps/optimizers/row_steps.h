// The steps of a row that are not those of a variable's elements.
#ifndef TFDIST_OPS_CORE_PS_OPTIMIZERS_ROW_STEPS_H_
#define TFDIST_OPS_CORE_PS_OPTIMIZERS_ROW_STEPS_H_

#include <cstddef>

#include "core/ps/optimizers/optimizer.h"

namespace tfdist::ps {

// Adagrad with one accumulator for the whole row: of the mean of its squared gradient.
void StepRowwiseAdagrad(const OptimizerConfig& config, const StepValues& step, size_t width,
                        const float* gradient, float* row, float* accumulator);

// Ftrl-proximal with a group lasso on the row: a row whose linear part is shorter than the penalty
// is zero (Yue et al. 2021, Adaptive Optimizers with Sparse Group Lasso).
void StepGroupFtrl(const OptimizerConfig& config, double group_penalty, const StepValues& step,
                   size_t width, const float* gradient, float* row, float* accumulator,
                   float* linear);

// Adafactor of a vector (Shazeer and Stern 2018, algorithm 5): a step as large as the row's
// root-mean-square, of an update whose own is clipped.
void StepAdafactor(const OptimizerConfig& config, const StepValues& step, size_t width,
                   const float* gradient, float* row, float* velocity);

// Adam's update, as long as the row times the learning rate (You et al. 2020).
void StepLamb(const OptimizerConfig& config, const StepValues& step, size_t width,
              const float* gradient, float* row, float* momentum, float* velocity);

// Adam's steps after `last` up to and including `until` with a gradient of zero, at the learning
// rate of `step`: what a dense variable goes through in steps in which this row was not used.
void CatchUpAdam(const OptimizerConfig& config, double learning_rate, int64_t last, int64_t until,
                 size_t width, float* row, float* momentum, float* velocity);

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_OPTIMIZERS_ROW_STEPS_H_
