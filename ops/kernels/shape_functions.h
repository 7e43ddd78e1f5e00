// Shape functions of several ops.
#ifndef TFDIST_OPS_KERNELS_SHAPE_FUNCTIONS_H_
#define TFDIST_OPS_KERNELS_SHAPE_FUNCTIONS_H_

#include "tensorflow/core/framework/shape_inference.h"

namespace tfdist {

// Output i has the shape of input i.
absl::Status SameShapes(tensorflow::shape_inference::InferenceContext* c);

// Output i has shape i of the attribute `shapes`; any shape if the list is shorter.
absl::Status ShapesOfAttribute(tensorflow::shape_inference::InferenceContext* c);

}  // namespace tfdist

#endif  // TFDIST_OPS_KERNELS_SHAPE_FUNCTIONS_H_
