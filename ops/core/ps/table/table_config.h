// What makes a table the same on all servers and for all workers.
#ifndef TFDIST_OPS_CORE_PS_TABLE_TABLE_CONFIG_H_
#define TFDIST_OPS_CORE_PS_TABLE_TABLE_CONFIG_H_

#include <array>
#include <cstdint>
#include <string>

#include "core/ps/optimizers/optimizer.h"
#include "core/ps/table/row_initializer.h"

namespace tfdist::ps {

// How a row's gradient changes it.
enum class RowRule : uint8_t {
  kElementwise = 1,     // as `optimizer` changes a variable; Adam is lazy
  kRowwiseAdagrad = 2,  // one accumulator for each row, of the mean of its squared gradient
  kGroupFtrl = 3,       // Ftrl with a penalty on each row's norm (Yue et al. 2021)
  kExactAdam = 4,       // steps in which a row had no gradient are made up for
  kAdafactor = 5,       // each row is a vector of its own (Shazeer and Stern 2018, algorithm 5)
  kLamb = 6,            // the trust ratio is each row's (You et al. 2020)
};
enum class EvictionPolicy : uint8_t { kLru = 1, kLfu = 2 };

struct TableConfig {
  uint32_t width = 1;
  RowRule rule = RowRule::kElementwise;
  OptimizerConfig optimizer;
  double weight_decay = 0;   // of a row in the steps in which it has a gradient, before each
  double group_penalty = 0;  // kGroupFtrl: of a row's norm, times sqrt(width)
  std::array<double, kMaxSlots> first_slots{};  // what slots begin as
  RowInitializer initializer;
  uint32_t min_count = 1;  // how often an id is seen until it gets a row
  double probability = 1;  // that an id gets a row when it is seen
  uint64_t max_rows = 0;   // above, each new row evicts one; 0: all are kept
  EvictionPolicy policy = EvictionPolicy::kLru;
  double ttl_seconds = 0;  // unused for longer, a row goes; 0: never
  double min_norm = 0;     // a row of a smaller Euclidean norm goes
};

// For messages: what the optimizer keeps of a row, and how many numbers, as "momentum (16)".
std::string SlotsText(const TableConfig& config);

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_TABLE_TABLE_CONFIG_H_
