// The initial value of a row: a function of the table's seed and the row's id. It does not depend
// on the worker or the server that creates the row, and is the same after the row was evicted.
#ifndef TFDIST_OPS_CORE_PS_TABLE_ROW_INITIALIZER_H_
#define TFDIST_OPS_CORE_PS_TABLE_ROW_INITIALIZER_H_

#include <cstddef>
#include <cstdint>

#include "core/base/status.h"

namespace tfdist::ps {

enum class InitializerKind : uint8_t {
  kConstant = 1,         // `a`
  kUniform = 2,          // from `a` to `b`
  kNormal = 3,           // mean `a`, standard deviation `b`
  kTruncatedNormal = 4,  // the same, redrawn beyond two standard deviations
};

struct RowInitializer {
  InitializerKind kind = InitializerKind::kConstant;
  double a = 0;
  double b = 0;
  uint64_t seed = 0;

  void Fill(int64_t id, size_t width, float* row) const;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_TABLE_ROW_INITIALIZER_H_
