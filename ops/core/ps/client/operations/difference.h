// What a step has changed: the values after it less the values before it.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_DIFFERENCE_H_
#define TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_DIFFERENCE_H_

#include <cstddef>

#include "core/math/dtype.h"

namespace tfdist::ps {

// out[i] = now[i] - then[i]. 16-bit floats are subtracted in float32 and rounded to nearest even;
// integers wrap.
void Subtract(DType dtype, void* out, const void* now, const void* then, size_t count);

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_DIFFERENCE_H_
